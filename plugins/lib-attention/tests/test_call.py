"""What a call is said to be, and when it is none."""

from __future__ import annotations

import pytest
import torch

from wf_lib_attention import call
from wf_lib_attention.call import Call, package_signature, packed, signature


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda q, k, v: (q, k.half(), v, None), "float32, float16, float32"),
        (lambda q, k, v: (q[0], k, v, None), "must be [B, L, H, D]"),
        (lambda q, k, v: (q, k[:, :0], v[:, :0], None), "empty axis"),
        (lambda q, k, v: (q, k, v[:, :5], None), "differ in shape"),
        (lambda q, k, v: (q, k[..., :32], v[..., :32], None), "batch or head size"),
        (lambda q, k, v: (q, k[:, :, :2], v[:, :, :2], None), "3 query heads cannot share 2 key heads"),
        (lambda q, k, v: (q, k, v, torch.zeros(33, 17)), "must be boolean"),
        (lambda q, k, v: (q, k, v, torch.ones(2, 17, dtype=torch.bool)), "does not broadcast"),
        (lambda q, k, v: (q, k, v, torch.ones(1, dtype=torch.bool, device="meta")), "cpu, meta"),
        (lambda q, k, v: (q, k, v, torch.ones(33, 17, dtype=torch.bool)), ""),
    ],
)
def test_tensors_that_do_not_fit_together(change, says, inputs):
    problem = Call.of(*change(*inputs())).problem()
    assert says in problem
    assert bool(problem) == bool(says)


def test_alignment_is_that_of_16_bytes(inputs):
    q, k, v = inputs(dtype=torch.float16)
    shifted = torch.cat([q.flatten(), q.flatten()])[1 : 1 + q.numel()].view(q.shape)
    strided = q.transpose(2, 3).contiguous().transpose(2, 3)
    assert Call.of(q, k, v, None).misaligned == ""
    assert Call.of(shifted, k, v, None).misaligned == "not aligned to 16 bytes"
    assert Call.of(q[..., :12], k[..., :12], v[..., :12], None).misaligned == "", (
        "rows still begin at 64 elements"
    )
    assert Call.of(strided, k, v, None).misaligned == "the head axis has a stride"


def test_a_package_is_judged_anew_for_another_offset_and_for_a_capture(inputs, monkeypatch):
    q, k, v = inputs(dtype=torch.float16)
    shifted = torch.cat([q.flatten(), q.flatten()])[1 : 1 + q.numel()].view(q.shape)
    assert signature(q, k, v, None) == signature(shifted, k, v, None)
    signs = [package_signature(q, k, v, None), package_signature(shifted, k, v, None)]
    monkeypatch.setattr(call, "is_captured", lambda query: True)
    signs.append(package_signature(q, k, v, None))
    assert len(set(signs)) == 3
    assert Call.of(q, k, v, None).capturing


def test_packing_copies_only_what_is_not_packed(inputs):
    q, _, _ = inputs(dtype=torch.float16)
    shifted = torch.cat([q.flatten(), q.flatten()])[1 : 1 + q.numel()].view(q.shape)
    strided = q.transpose(1, 2)
    assert packed(q) is q
    for tensor in (shifted, strided):
        assert torch.equal(packed(tensor), tensor)
        assert packed(tensor).is_contiguous() and packed(tensor).storage_offset() == 0
