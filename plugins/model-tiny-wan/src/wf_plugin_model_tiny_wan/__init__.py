"""A tiny trained Wan pipeline that ships inside the package: coloured handwritten digits that move.

``checkpoint/`` is a diffusers directory that ``diffusers.WanPipeline.from_pretrained`` loads as it is;
``clips`` makes the data it was trained on, ``score`` says whether a clip shows what its prompt asks for,
``evaluate`` measures the checkpoint, and ``training`` makes it from nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import PromptScorer


@hookimpl
def wf_prompt_scorer(name: str) -> PromptScorer:
    """Colour, direction and digit, read from the pixels."""
    from wf_plugin_model_tiny_wan.score import judge_clips

    return judge_clips
