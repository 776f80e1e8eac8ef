"""What the cached judgement of torch's operators depends on beyond what the library's base class looks at."""

from __future__ import annotations

import pytest
import torch


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_alignment_and_determinism_are_part_of_it_where_they_matter(backend, provider, inputs, monkeypatch):
    sign = provider(backend).sign
    q, k, v = inputs(size=16)
    shifted = torch.cat([q.flatten(), q.flatten()])[3 : 3 + q.numel()].view(q.shape)
    signs = [sign(q, k, v, None), sign(shifted, k, v, None)]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    signs.append(sign(q, k, v, None))
    assert len(set(signs)) == 3
