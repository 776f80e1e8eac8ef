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
    "HunyuanVideoAttnProcessor2_0": "3bf92d920514d8ba64e06ccd4c3a062ee634450223c41a692aebf6597d310f48",
    "HunyuanVideo15Transformer3DModel": "55099c69c6d468aedafa1f90da5e58c05c3edc1bbc3810d0e8a0121df9e6b726",
    "HunyuanVideo15TransformerBlock": "d234ba9724c969d09c2313b02c993f2426f807a76c9083d07e2983d081093b45",
    "HunyuanVideo15AttnProcessor2_0": "0c998dacbb4b1e62bed3f5d1fc1784abe52f3b47db44e276689c77d7b1c31788",
}
TESTED = {name: frozenset({known}) for name, known in TESTED_0_42_1.items()}
"""Name -> the sha256 values of ``inspect.getsource`` that the open forwards equal, by test."""

SEAMS_OF_ROOT = ("stack", "block", "modulation")
"""These depend on the source of the root."""
SEAMS_OF_ATTENTION = ("attention", "qkv")
"""These on the root, which may cut the text for it, on the blocks, which must let it, and on the processors."""

SOURCES = TestedSources((transformer_hunyuan_video, transformer_hunyuan_video15), TESTED)


def unavailable_in(root: Any, name: str) -> dict[str, str]:
    """Seam -> reason, for the seams that cannot be opened on the root called ``name``."""
    blocks = [block for block, _, _ in blocks_of(root)]
    processors = [getattr(getattr(block, "attn", None), "processor", None) for block in blocks]
    of_root = SOURCES.why(name, [root])
    of_attention = (
        of_root or SOURCES.why(f"{name} blocks", blocks) or SOURCES.why(f"{name} attention", processors)
    )
    reasons = {SEAMS_OF_ROOT: of_root, SEAMS_OF_ATTENTION: of_attention}
    return {seam: reason for seams, reason in reasons.items() if reason for seam in seams}
