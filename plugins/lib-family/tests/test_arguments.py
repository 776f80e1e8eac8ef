"""Prompts counted and latents compared, as the pipelines of all families name them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from wf_lib_family.arguments import count_prompts, latents_fit

EMBEDS = torch.zeros(3, 7, 4)


@pytest.mark.parametrize(
    ("arguments", "count"),
    [
        ({"prompt": "a cat"}, 1),
        ({"prompt": ["a", "b"]}, 2),
        ({"prompt": None, "prompt_embeds": EMBEDS}, 3),
        ({"prompt": None, "prompt_embeds": None}, None),
        ({}, None),
    ],
)
def test_prompts(arguments: dict[str, Any], count: int | None) -> None:
    assert count_prompts(arguments) == count


def test_latents_that_do_not_fit_are_told_with_the_shape_that_does() -> None:
    wanted = (1, 16, 2, 4, 6)
    assert list(latents_fit({}, wanted)) == []
    assert list(latents_fit({"latents": torch.zeros(wanted)}, wanted)) == []
    (reason,) = latents_fit({"latents": torch.zeros(1, 16, 2, 4, 5)}, wanted)
    assert reason.startswith(
        "latents have shape (1, 16, 2, 4, 5), but this call needs (1, 16, 2, 4, 6): batch"
    )
