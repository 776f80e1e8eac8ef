"""The signal that is seen in the call itself: the rule, what is left out of a skipped call, and what can go wrong."""

from __future__ import annotations

import pytest
import torch
from teacache_fakes import LINE, settings
from teacache_vectors import SCHEDULES, coefficients, vector

from wf_core.api import BadInput, Facts, Site
from wf_core.testing import CacheDriver
from wf_lib_teacache.cache import TeaCache
from wf_lib_teacache.first_block import FirstBlockTeaCache, is_first_norm, technique_for
from wf_lib_teacache.settings import settle

NORM = Site("norm_modulate", path="transformer_blocks.0.norm1", index=0, role="self")
GRID = (2, 1, 2)
"""Two frames of two tokens."""


class Model(CacheDriver):
    """Blocks that add ``bias``, behind a first norm that gives ``signal``, in as many parts as it is a list of."""

    def __init__(self, order=0, **changes):
        changes = {"signal": "block0", **changes}
        super().__init__(technique_for(settings(**changes), order), [self._first, self._second])
        self.signal = torch.ones(1, 4, 3)
        self.bias = 1.0
        self.fault = None

    def _first(self, x):
        for part in self.signal if isinstance(self.signal, list) else [self.signal]:
            given = object()
            seen = self.cache.handlers()["norm_modulate"](
                lambda norm, x, scale, shift, part=part: part, NORM, given, x, None, None
            )
            assert seen is part
        if self.fault:
            raise self.fault
        return x + self.bias

    def _second(self, x):
        return x

    def step(self, index, signal=None, **more):
        """One call; whether both blocks ran, and what came out."""
        if signal is not None:
            self.signal = signal
        out = self.call(index, more.pop("value", torch.zeros(1, 4, 3)), grid=GRID, **{"total": 12, **more})
        return self.ran[-1] == [0, 1], out


def signals(distances):
    """Signals ``[1, 4, 3]`` of which each is that far from the one before."""
    level, found = 1.0, []
    for distance in distances:
        level *= 1.0 + (distance or 0.0)
        found.append(torch.full((1, 4, 3), level, dtype=torch.float64).float())
    return found


@pytest.mark.parametrize("name", SCHEDULES)
def test_decisions_are_those_of_the_rule_on_the_vectors_distances(name):
    given, expected = vector(name)["inputs"], vector(name)["expected"]
    model = Model(
        coefficients=coefficients(given["preset"]),
        threshold=given["thresh"],
        first=given["retain_first"],
        last=given["retain_last"],
    )
    total = len(given["d"])
    model.begin(model.view(total))
    computed = [i for i, s in enumerate(signals(given["d"])) if model.step(i, s, total=total)[0]]
    assert computed == expected["compute_steps"] == model.computed()


def started(order=0, total=12, branches=2, **changes):
    model = Model(order, **changes)
    return model, model.begin(model.view(total, branches=branches))


def test_a_skipped_call_ends_at_the_first_norm_and_gives_the_kept_residual():
    model, counters = started(threshold=1.0)
    assert model.step(0)[0]
    model.bias = 5.0
    ran, out = model.step(1, value=torch.full((1, 4, 3), 2.0))
    assert not ran and model.ran[-1] == [0], "the first block was entered, and left before its end"
    assert torch.equal(out, torch.full((1, 4, 3), 3.0))
    assert dict(counters.counts) == {"computed": 1, "skipped": 1, "host_syncs": 1}
    assert (model.cache.evidence()["decisions"], model.cache.evidence()["signal"]) == ("live", "block0")


def test_a_layer_that_does_not_let_a_skipped_call_be_left_is_told():
    model, counters = started(threshold=1.0)
    first = model.blocks[0]

    def stubborn(x):
        try:
            return first(x)
        except BaseException:
            return x + model.bias

    model.blocks[0] = stubborn
    for index in range(2):
        ran, out = model.step(index)
        assert ran and torch.equal(out, torch.ones(1, 4, 3))
    assert model.computed() == [0, 1] and model.reasons()[1] == "not-left"
    assert list(counters.fallbacks) == ["a layer kept a skipped call from being left; the step was computed"]


def test_each_signal_is_compared_with_the_one_before_also_where_that_was_skipped():
    model, _ = started(threshold=0.25, first=0, last=0)
    ran = [model.step(i, s)[0] for i, s in enumerate(signals([0, 0.1, 0.1, 0.1]))]
    assert ran == [True, False, False, True]
    assert [event.metric for event in model.cache.events[1:]] == pytest.approx([0.1, 0.2, 0.3], rel=1e-5)


def test_steps_that_are_always_computed_do_not_wait_for_the_device():
    model, counters = started(threshold=10.0, first=3, last=2)
    assert [model.step(i)[0] for i in range(12)] == [True] * 3 + [False] * 7 + [True] * 2
    assert counters.counts["host_syncs"] == 7


def test_branches_do_not_know_of_each_other():
    model, _ = started(threshold=0.5)
    small, large = signals([0, 0.1]), signals([0, 0.9])
    for index in range(2):
        model.bias = 1.0
        assert model.step(index, small[index], branch="cond")[0] == (index == 0)
        model.bias = float("nan")
        assert model.step(index, large[index], branch="uncond")[0]
    model.signal = small[1]
    ran, out = model.step(2, branch="cond")
    assert not ran and torch.equal(out, torch.ones(1, 4, 3))


def test_a_batch_is_decided_by_the_sample_that_moved_most():
    model, _ = started(threshold=0.5)
    value = torch.zeros(2, 4, 3)
    model.step(0, torch.ones(2, 4, 3), value=value)
    assert not model.step(1, torch.tensor([1.0, 1.4]).view(2, 1, 1).expand(2, 4, 3).clone(), value=value)[0]
    assert model.step(2, torch.tensor([1.0, 2.4]).view(2, 1, 1).expand(2, 4, 3).clone(), value=value)[0]


def test_a_signal_in_parts_is_the_whole_one():
    """A first frame with a time of its own goes through the norm by itself, before the other tokens."""
    whole, _ = started(threshold=0.15)
    parts, _ = started(threshold=0.15)
    for index, signal in enumerate(signals([0, 0.1, 0.1, 0.1])):
        signal = signal * torch.arange(1.0, 5.0).view(1, 4, 1)
        assert parts.step(index, [signal[:, :2], signal[:, 2:]])[0] == whole.step(index, signal)[0]
    assert [e.metric for e in parts.cache.events] == [e.metric for e in whole.cache.events]
    assert {e.reason for e in whole.cache.events} == {"first-steps", "below-threshold", "threshold"}


def test_a_call_that_cannot_be_told_is_computed_and_drops_what_was_kept():
    model, counters = started(threshold=10.0)
    model.step(0)
    assert model.step(1, source="ambiguous")[0]
    assert list(model.cache.held_tensors()) == []
    assert model.step(2)[0]
    assert sum(counters.fallbacks.values()) == 1


def test_an_unseen_signal_is_a_fallback():
    model, counters = started(threshold=10.0)
    assert all(model.step(index, [])[0] for index in range(2))
    assert list(counters.fallbacks) == [
        "the first block's modulated input was not seen; the step was computed"
    ]
    assert counters.counts["computed"] == 2


def test_what_is_not_finite_is_computed_and_counted():
    model, counters = started(threshold=10.0)
    model.step(0)
    assert model.step(1, torch.full((1, 4, 3), float("nan")))[0]
    assert any("not a finite number" in reason or "domain" in reason for reason in counters.fallbacks)


def test_another_size_in_a_run_is_computed():
    model, _ = started(threshold=10.0)
    model.step(0)
    wide = torch.zeros(1, 4, 6)
    assert model.step(1, torch.ones(1, 4, 6), value=wide)[0]
    assert not model.step(2, value=wide)[0]


def test_a_run_of_skips_is_cut_and_a_line_is_continued():
    model, counters = started(order=1, threshold=10.0, max_skip=1, first=2, last=0)
    outs = []
    for index in range(6):
        model.bias = float(index)
        outs.append(float(model.step(index)[1].mean()))
    assert model.computed() == [0, 1, 3, 5]
    assert outs == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]
    assert counters.counts["max_skip_cuts"] == 2


def test_a_call_that_fails_leaves_nothing_half_done():
    model, _ = started(threshold=10.0)
    model.step(0)
    model.fault = KeyError("stop")
    with pytest.raises(KeyError):
        model.step(11)
    model.fault = None
    assert list(model.cache.held_tensors()) == []
    assert model.step(5)[0], "the rule had taken the failed call for computed"
    assert not model.step(6)[0]
    model.cache.end()
    assert list(model.cache.held_tensors()) == []
    given = torch.ones(1, 4, 3)
    assert model.cache.handlers()["norm_modulate"](lambda *_: given, NORM, None, given) is given


def test_memory_is_a_signal_and_the_residuals_of_each_branch():
    model, _ = started(order=1, threshold=0.0)
    for index in range(3):
        for branch in ("cond", "uncond"):
            model.step(index, branch=branch)
    assert sum(tensor.numel() for tensor in model.cache.held_tensors()) == 2 * 3 * 12


def test_too_few_steps_are_told():
    model, counters = started(total=2)
    assert [model.step(i, total=2)[0] for i in range(2)] == [True, True]
    assert list(counters.fallbacks) == ["all 2 steps are computed: the first 1 and the last 1 always are"]


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({}, True),
        ({"role": "joint"}, True),
        ({"index": 1, "path": "transformer_blocks.1.norm1"}, False),
        ({"path": "transformer_blocks.0.norm2", "role": "ffn"}, False),
        ({"path": "transformer_blocks.0.norm1_context", "role": "text"}, False),
        ({"path": "single_transformer_blocks.0.norm", "role": "joint"}, False),
    ],
)
def test_one_norm_of_one_block_is_opened(changes, wanted):
    site = Site(**{"seam": "norm_modulate", "path": NORM.path, "index": 0, "role": "self", **changes})
    assert is_first_norm(site) is wanted
    assert Model().cache.wants(site) is wanted
    assert Model().cache.wants(Site("stack"))


# --- which signal -----------------------------------------------------------------------------------------------------


def facts(family, model="own", **more):
    return Facts.of({"model.id": model, "model.family": family, **more}, "test")


@pytest.mark.parametrize("family", ["hunyuan", "cosmos"])
def test_these_families_are_judged_by_the_first_block(family):
    found = settle({"coefficients": LINE}, facts(family))
    assert (found.signal, found.first, found.last) == ("block0", 1, 1)
    assert isinstance(technique_for(found), FirstBlockTeaCache)
    with pytest.raises(
        BadInput, match="signal e is not what this model family is judged by, which is block0"
    ):
        settle({"coefficients": LINE, "signal": "e"}, facts(family))
    allowed = facts(family, **{"request.allow_uncalibrated": True})
    with pytest.raises(BadInput, match=r"wan2\.1-t2v-1\.3b\.e was fitted on signal e, and this model family"):
        settle({"preset": "wan2.1-t2v-1.3b.e"}, allowed)


@pytest.mark.parametrize("family", ["wan", "another"])
def test_the_others_by_the_time_embedding(family):
    found = settle({"coefficients": LINE}, facts(family))
    assert found.signal == "e" and type(technique_for(found)) is TeaCache
    with pytest.raises(BadInput, match="signal block0 is not what this model family is judged by"):
        settle({"coefficients": LINE, "signal": "block0"}, facts(family))


@pytest.mark.parametrize(
    ("family", "model", "preset", "threshold"),
    [
        ("hunyuan", "hunyuanvideo", "hunyuanvideo.block0", 0.1),
        ("hunyuan", "hunyuanvideo-1.5-i2v-720p", "hunyuanvideo-1.5-i2v-720p.block0", 0.15),
        ("cosmos", "cosmos-predict1-7b-video2world", "cosmos-1.0-diffusion-7b.block0", 0.3),
    ],
)
def test_a_model_gets_its_own_published_fit(family, model, preset, threshold):
    found = settle({}, facts(family, model))
    assert (found.source, found.signal, found.threshold) == (f"preset {preset}", "block0", threshold)
    assert found.lent == "" and found.confidence in ("upstream", "peer fit")


def test_another_checkpoint_of_the_family_borrows_only_where_that_is_allowed():
    with pytest.raises(BadInput, match="no preset is known"):
        settle({}, facts("hunyuan", "hunyuanvideo-i2v"))
    asked = {"preset": "hunyuanvideo.block0"}
    with pytest.raises(BadInput, match="allow_uncalibrated"):
        settle(asked, facts("hunyuan", "hunyuanvideo-i2v"))
    allowed = facts("hunyuan", "hunyuanvideo-i2v", **{"request.allow_uncalibrated": True})
    assert "measured on hunyuanvideo" in settle(asked, allowed).lent
