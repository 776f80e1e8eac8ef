"""The recipe cache: a signature is judged once per run, and a run starts without the last one's."""

from __future__ import annotations

import pytest
import torch

from wf_plugin_attention_sdpa import providers


def judged(provider, monkeypatch):
    """How often ``provider`` looked at a call closely."""
    seen = []
    prepare = provider._prepare
    monkeypatch.setattr(provider, "_prepare", lambda *args: seen.append(args[0].shape) or prepare(*args))
    return seen


def test_a_signature_is_judged_once(provider, inputs, monkeypatch):
    math = provider("math")
    seen = judged(math, monkeypatch)
    for _ in range(3):
        math.attend(*inputs(), None)
    math.attend(*inputs(lq=34), None)
    assert [shape[1] for shape in seen] == [33, 34]


def test_what_eligibility_depends_on_is_part_of_the_signature(provider, inputs, monkeypatch):
    math = provider("math")
    q, k, v = inputs(size=12)
    mask = torch.ones(33, 17, dtype=torch.bool)
    other_layout = q.transpose(2, 3).contiguous().transpose(2, 3)
    calls = [
        (q, k, v, None),
        (q, k, v, mask),
        (q, k, v, mask[:1]),
        (q.half(), k.half(), v.half(), None),
        (other_layout, k, v, None),
        (q.clone().requires_grad_(), k, v, None),
    ]
    seen = judged(math, monkeypatch)
    for call in calls:
        math.attend(*call)
    assert len(seen) == len(calls)


@pytest.mark.parametrize("backend", ["efficient", "cudnn"])
def test_alignment_and_determinism_are_part_of_it_where_they_matter(backend, provider, inputs, monkeypatch):
    sign = provider(backend).sign
    q, k, v = inputs(size=16)
    shifted = torch.cat([q.flatten(), q.flatten()])[3 : 3 + q.numel()].view(q.shape)
    signs = [sign(q, k, v, None), sign(shifted, k, v, None)]
    monkeypatch.setattr(torch, "are_deterministic_algorithms_enabled", lambda: True)
    signs.append(sign(q, k, v, None))
    assert len(set(signs)) == 3


def test_a_new_run_starts_with_no_evidence(provider, inputs):
    math = provider("math")
    math.attend(*inputs(), None)
    math.begin(None)
    assert math.evidence() == {"operators": {}, "around": []}


def test_the_cache_is_bounded(provider, inputs, monkeypatch):
    monkeypatch.setattr(providers, "_MOST_RECIPES", 3)
    math = provider("math")
    sizes = []
    for length in range(1, 9):
        math.attend(*inputs(lq=length), None)
        sizes.append(len(math._recipes))
    assert max(sizes) == 3
    assert min(sizes) >= 1
    seen = judged(math, monkeypatch)
    math.attend(*inputs(lq=8), None)
    assert seen == [], "the newest signature is still known"


def test_calls_are_counted_by_the_handler(provider, inputs):
    math = provider("math")
    handler = math.handlers()["attention"]
    for _ in range(4):
        handler(None, None, *inputs(), None)
    assert math.counters.counts == {"attempts": 4, "successes": 4}
