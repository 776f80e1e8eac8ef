"""Which stock source the open forwards were proven equal to.

Open mode repeats stock code, so it is offered only where the stock source is one that was tested. Anything else makes
the seam unavailable, with a reason; stock mode does not depend on the source.
"""

from __future__ import annotations

from typing import Any

from diffusers.models.transformers import transformer_cosmos

from wf_lib_family.source import TestedSources

TESTED_0_42_1 = {
    "CosmosTransformer3DModel": "49943a5ae4db9d1e81a19ffd4c1a8201ff7a2a25f9ef03a93dd881cbedbc4ba4",
    "CosmosTransformerBlock": "2b0f4a6dcb0c88db7c13f3d105ef9dcb493d33c24aa45ffcfb96993c2fbc1412",
    "CosmosAdaLayerNormZero": "ca9f10c795988d443eda0cce88ef7be556515db2c2a20ba91db47ecd72e1555e",
    "CosmosAdaLayerNorm": "2fdee3d5fcabdff945491c10ae2247528d0483194de20ce2493c0e57d9cf91aa",
    "CosmosAttnProcessor2_0": "515dde2aa7958d984cfd3a5eee18937a8c53ded97cc16d81233bc54a5a75c025",
    "CosmosAttnProcessor2_5": "7f4af098d83e12addcd6e856c609fa49e0c56c4963c8f95c825c861c73d3737c",
}
TESTED = {name: frozenset({known}) for name, known in TESTED_0_42_1.items()}
"""Name -> the sha256 values of ``inspect.getsource`` that the open forwards equal, by test."""

BLOCK = ("CosmosTransformerBlock", "CosmosAdaLayerNormZero")
ATTENTION = ("CosmosAttnProcessor2_0", "CosmosAttnProcessor2_5")

SEAMS_OF_ROOT = ("stack", "block", "modulation", "time_embedding")
"""``time_embedding`` opens the blocks and the norm of the head too."""
SEAMS_OF_BLOCK = ("branch", "feed_forward", "norm_modulate", "gated_residual")
SEAMS_OF_ATTENTION = ("attention", "qkv", "rope")


SOURCES = TestedSources((transformer_cosmos,), TESTED)


def unavailable_in(root: Any, name: str) -> dict[str, str]:
    """Seam -> reason, for the seams that cannot be opened on the root called ``name``."""
    blocks = list(root.transformer_blocks)
    attentions = [getattr(block, attn, None) for block in blocks for attn in ("attn1", "attn2")]
    processors = [getattr(attn, "processor", None) for attn in attentions]
    where = f"{name}.transformer_blocks"
    of_root = SOURCES.why(name, [root])
    of_blocks = SOURCES.why(where, blocks, BLOCK) or _of_a_control_network(where, blocks)
    of_head = SOURCES.why(f"{name}.norm_out", [getattr(root, "norm_out", None)])
    reasons = {
        SEAMS_OF_ROOT: of_root,
        ("time_embedding",): of_root or of_blocks or of_head,
        SEAMS_OF_BLOCK: of_blocks,
        SEAMS_OF_ATTENTION: SOURCES.why(f"{where} attention", processors, ATTENTION),
    }
    return {seam: reason for seams, reason in reasons.items() if reason for seam in seams}


def _of_a_control_network(where: str, blocks: list[Any]) -> str:
    """The blocks of a control network are of the same class, and have projections that the open block does not."""
    if all(block.before_proj is None and block.after_proj is None for block in blocks):
        return ""
    return f"{where} have the projections of a control network's blocks"
