"""The recipe cache: a signature is judged once per run, and a run starts without the last one's."""

from __future__ import annotations

import pytest
import torch

from wf_core.api import Ineligible
from wf_lib_attention import caching
from wf_lib_attention.caching import CachedProvider, require


class Echo(CachedProvider):
    """Gives the query back, for head sizes of at least 12; knows how often it looked closely."""

    def __init__(self):
        super().__init__()
        self.judged = []

    def _prepare(self, query, key, value, mask):
        self.judged.append(query.shape[1])
        require("" if query.shape[-1] >= 12 else "too small a head")
        self._note("echo", ("nothing around it",))
        return lambda q, k, v, m: q.clone()


def test_a_signature_is_judged_once(inputs):
    echo = Echo()
    for _ in range(3):
        echo.attend(*inputs(), None)
    echo.attend(*inputs(lq=34), None)
    assert echo.judged == [33, 34]
    assert echo.evidence() == {"operators": {"echo": 2}, "around": ["nothing around it"]}


def test_what_eligibility_depends_on_is_part_of_the_signature(inputs):
    echo = Echo()
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
    for call in calls:
        echo.attend(*call)
    assert len(echo.judged) == len(calls)


def test_a_refusal_is_remembered_and_repeated(inputs):
    echo = Echo()
    for _ in range(2):
        with pytest.raises(Ineligible, match="too small a head"):
            echo.attend(*inputs(size=8), None)
    assert echo.judged == [33]
    assert echo.evidence() == {"operators": {}, "around": []}


def test_a_new_run_starts_with_no_evidence_and_no_recipe(inputs):
    echo = Echo()
    echo.attend(*inputs(), None)
    echo.end()
    assert echo.evidence()["operators"] == {"echo": 1}, "the report is written after the run"
    echo.begin(None)
    assert echo.evidence() == {"operators": {}, "around": []}
    echo.attend(*inputs(), None)
    assert echo.judged == [33, 33]


def test_the_cache_is_bounded(inputs, monkeypatch):
    monkeypatch.setattr(caching, "MOST_RECIPES", 3)
    echo, sizes = Echo(), []
    for length in range(1, 9):
        echo.attend(*inputs(lq=length), None)
        sizes.append(len(echo._recipes))
    assert max(sizes) == 3 and min(sizes) >= 1
    echo.attend(*inputs(lq=8), None)
    assert len(echo.judged) == 8, "the newest signature is still known"


def test_calls_are_counted_by_the_handler(inputs, tally):
    echo = Echo()
    echo.counters = tally
    handler = echo.handlers()["attention"]
    for _ in range(4):
        handler(None, None, *inputs(), None)
    assert tally.counts == {"attempts": 4, "successes": 4}
