"""Which stock source the open forwards were proven equal to.

Open mode repeats stock code, so it is offered only where the stock source is one that was tested. Anything else makes
the seam unavailable, with a reason; stock mode does not depend on the source.
"""

from __future__ import annotations

from typing import Any

from diffusers.models.transformers import transformer_hunyuan_video, transformer_hunyuan_video15

from wf_lib_family.source import TestedSources
from wf_plugin_hunyuan.stock import blocks_of

TESTED_0_42_1: dict[str, str] = {
    "HunyuanVideoTransformer3DModel": "d850e4bfd52c3213f68dfbef39c6103622efd09fda4c4e84d8932c38216249fb",
    "HunyuanVideoTransformerBlock": "a24dafd921d8930373d414c0736b61a88388099f0c90a0103a09cb90011cd3fe",
    "HunyuanVideoSingleTransformerBlock": "416d511040d5d6da08ff18eb298e32954ef48b76dd8bd14050ae0b876a2ebef4",
    "HunyuanVideoTokenReplaceTransformerBlock": "9a68144f1a7ca9bc66804e45b955d9d1345bc76c689bd8eaca3e1bb7c221cae4",
    "HunyuanVideoTokenReplaceSingleTransformerBlock": (
        "f06a9f8c9d7093717cba36eb1e9361e207b53063aabfb2a24e66ce435b79c4cb"
    ),
    "AdaLayerNormZero": "a3de01f0a2d7a1e7cc283ccc7dc57d77c24a58b91c32f11fb7d3418dc2758550",
    "AdaLayerNormZeroSingle": "54a10e635dc3f541e6e9419f221ab15935f4bf98396ad8629c6c6215fff824d2",
    "HunyuanVideoTokenReplaceAdaLayerNormZero": "a6e30943574d33d5496058dd9929afb2e0c23226db9c6e45aa687bdda17c987f",
    "HunyuanVideoTokenReplaceAdaLayerNormZeroSingle": (
        "a3cb3ac684c7e0903410a4afa01ca75118e6f26ee55f6fa27ddf6d82ca44b88d"
    ),
    "HunyuanVideoAttnProcessor2_0": "3bf92d920514d8ba64e06ccd4c3a062ee634450223c41a692aebf6597d310f48",
    "HunyuanVideo15Transformer3DModel": "55099c69c6d468aedafa1f90da5e58c05c3edc1bbc3810d0e8a0121df9e6b726",
    "HunyuanVideo15TransformerBlock": "d234ba9724c969d09c2313b02c993f2426f807a76c9083d07e2983d081093b45",
    "HunyuanVideo15AttnProcessor2_0": "0c998dacbb4b1e62bed3f5d1fc1784abe52f3b47db44e276689c77d7b1c31788",
}
TESTED = {name: frozenset({known}) for name, known in TESTED_0_42_1.items()}
"""Name -> the sha256 values of ``inspect.getsource`` that the open forwards equal, by test."""

SEAMS_OF_ROOT = ("stack", "block", "modulation")
"""These depend on the source of the root."""
SEAMS_OF_BLOCK = ("branch", "feed_forward", "norm_modulate", "gated_residual")
"""These on the blocks, and on their norms, whose layers an open block calls."""
SEAMS_OF_ATTENTION = ("attention", "qkv", "rope")
"""These on the root, which may cut the text for it, on the blocks, which must let it, and on the processors."""

SOURCES = TestedSources((transformer_hunyuan_video, transformer_hunyuan_video15), TESTED)


def unavailable_in(root: Any, name: str) -> dict[str, str]:
    """Seam -> reason, for the seams that cannot be opened on the root called ``name``."""
    blocks = [block for block, _, _ in blocks_of(root)]
    processors = [getattr(getattr(block, "attn", None), "processor", None) for block in blocks]
    of_root = SOURCES.why(name, [root])
    of_blocks = SOURCES.why(f"{name} blocks", blocks)
    reasons = {
        SEAMS_OF_ROOT: of_root,
        SEAMS_OF_BLOCK: of_blocks or SOURCES.why(f"{name} norms", _norms(blocks)),
        SEAMS_OF_ATTENTION: of_root or of_blocks or SOURCES.why(f"{name} attention", processors),
    }
    return {seam: reason for seams, reason in reasons.items() if reason for seam in seams}


def _norms(blocks: list[Any]) -> list[Any]:
    """The norms of stock blocks that have layers for the modulation."""
    names = ("norm", "norm1", "norm1_context")
    return [norm for block in blocks for name in names if (norm := getattr(block, name, None)) is not None]
