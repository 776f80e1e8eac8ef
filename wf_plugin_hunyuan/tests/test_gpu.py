"""Open blocks on a CUDA device: the same bits as stock, in the kernels that are chosen there."""

from __future__ import annotations

import copy
from types import SimpleNamespace

import pytest
import torch

pytestmark = pytest.mark.gpu

SEAMS = ("stack", "block", "branch", "norm_modulate", "gated_residual", "feed_forward", "linear")
WIDE = {"attention_head_dim": 64, "rope_axes_dim": (16, 24, 24)}
"""Heads of a size that the fused attention kernels take."""


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5"])
def test_all_seams_together_are_bit_identical(kind: str, dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    """An open attention of 1.5 has no mask of all pairs, and so other kernels."""
    model = copy.deepcopy(tiny.model(kind, dtype, **WIDE)).cuda()
    call = {
        name: value.cuda() if isinstance(value, torch.Tensor) else value
        for name, value in tiny.call(kind, dtype, (5, 8)).items()
    }
    seams = SEAMS if kind == "1.5" else (*SEAMS, "attention", "qkv", "rope")
    opened = tiny.open(model, *seams)
    assert torch.equal(opened.once(call), model(**call)[0])
    assert {site.seam for site, _ in opened.seen.calls} == set(seams)
