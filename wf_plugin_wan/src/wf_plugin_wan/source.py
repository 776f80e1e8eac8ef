"""Which stock source the open forwards were proven equal to.

Open mode repeats stock code, so it is offered only where the stock source is one that was tested. Anything else makes
the seam unavailable, with a reason; stock mode does not depend on the source.
"""

from __future__ import annotations

from typing import Any

from diffusers.models.transformers import transformer_wan, transformer_wan_vace

from wf_lib_family.source import TestedSources

TESTED_0_42_1 = {
    "WanTransformer3DModel": "f68ae8c75725eab81e97cff274b0464f4008be52eb82193423276e7af0ff4970",
    "WanVACETransformer3DModel": "e077e20193aa118f9e72f1c2a947301c4760ddfe0906d96a05936bc674d41d2e",
    "WanTransformerBlock": "699a27c6d2f6e75eb436c77da05238c485c1969b3f0baf2fc6b124d6b3163584",
    "WanVACETransformerBlock": "743d72ddec387bb25eadc25cb3a9bfd6401d833d0fb3f852205ad3345bf5e5ce",
    "WanAttnProcessor": "422e95da65cbd7b48b4dd338f24be653abc6f2aa4919e8cb96a9f5c0dace9b6f",
    "WanAttention": "6f04ae64178b6c43c072a47787b872094db1b0e166f8842bc8e4954815a8e250",
    "WanTimeTextImageEmbedding": "3562012362b1d4e62f9bc5f3b2aaac827cde14e0c092d9413c0115f41b1addf3",
    "_get_qkv_projections": "657bbdb508a6c6120c3d94d251700f0d6245facbc02564c99be01efab1679369",
    "_get_added_kv_projections": "93d1cc08f37ffd7aea8d887132f5f4341e3a21d03638efd229e9be72ba6f5622",
}
TESTED = {name: frozenset({known}) for name, known in TESTED_0_42_1.items()}
"""Name -> the sha256 values of ``inspect.getsource`` that the open forwards equal, by test."""

ATTENTION = ("WanAttnProcessor", "WanAttention", "_get_qkv_projections", "_get_added_kv_projections")

SEAMS_OF_ROOT = ("stack", "block", "modulation", "time_embedding")
"""``time_embedding`` opens the embedder too."""
SEAMS_OF_BLOCK = ("branch", "feed_forward", "norm_modulate", "gated_residual")
SEAMS_OF_ATTENTION = ("attention", "qkv", "rope")


SOURCES = TestedSources((transformer_wan, transformer_wan_vace), TESTED)


def unavailable_in(root: Any, name: str) -> dict[str, str]:
    """Seam -> reason, for the seams that cannot be opened on the root called ``name``."""
    blocks = [*root.blocks, *getattr(root, "vace_blocks", ())]
    attentions = [getattr(block, attn, None) for block in blocks for attn in ("attn1", "attn2")]
    processors = [getattr(attn, "processor", None) for attn in attentions]
    reasons = {
        SEAMS_OF_ROOT: SOURCES.why(name, [root]),
        ("time_embedding",): SOURCES.why(
            f"{name}.condition_embedder", [getattr(root, "condition_embedder", None)]
        ),
        SEAMS_OF_BLOCK: SOURCES.why(f"{name}.blocks", blocks),
        SEAMS_OF_ATTENTION: SOURCES.why(f"{name}.blocks attention", processors, ATTENTION),
    }
    return {seam: reason for seams, reason in reasons.items() if reason for seam in seams}
