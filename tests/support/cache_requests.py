"""Feature caches by request on a tiny model of any family: what each may skip, and what is true of all of them.

The tests of a family give its pipelines; a driver here names no branch, as the pipelines of some families do not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch

from wf_core import Host, Refused

STEPS = 6
BRANCHES = ("transformer/cond", "transformer/uncond")
LINE = [1.0, 0.0]
CACHES: dict[str, tuple[dict[str, Any], dict[str, Any], list[int]]] = {
    "teacache": ({"coefficients": LINE, "threshold": 0.0}, {"coefficients": LINE, "threshold": 10.0}, [0, 5]),
    "custom": ({"coefficients": LINE, "threshold": 0.0}, {"coefficients": LINE, "threshold": 10.0}, [0, 5]),
    "magcache": (
        {"ratios": [1.0] * STEPS, "threshold": 0.0},
        {"ratios": [1.0] * STEPS, "threshold": 1.0, "retention_ratio": 0.0},
        [0, 3],
    ),
    "adacache": ({"threshold": 0.0}, {"thresholds": [1.0], "rates": [2]}, [0, 1, 3, 5]),
    "taylorseer": ({"interval": 1}, {"interval": 2, "last": 0}, [0, 2, 4]),
    "blocktaylorseer": ({"pattern": [True]}, {"pattern": [True, False], "last": 0}, [0, 2, 4]),
    "firstblock": ({"residual_diff_threshold": 0.0}, {"residual_diff_threshold": 10.0}, [0]),
    "dualblock": ({"residual_diff_threshold": 0.0}, {"residual_diff_threshold": 10.0}, [0]),
    "dynamicblock": ({"residual_diff_threshold": 0.0}, {"residual_diff_threshold": 10.0}, [0, 1]),
    "easycache": ({"threshold": 0.0, "first": 2}, {"threshold": 10.0, "first": 2}, [0, 1, 5]),
}
"""Options at which nothing is skipped, at which everything is that may be, and the steps computed then."""
WEIGHED = {"teacache", "custom", "easycache", "adacache", "firstblock", "dualblock", "dynamicblock"}
"""Those that look at values: they wait for the device, once a call at most."""
COST = {"easycache": 1.0}
"""How far from the plain clip skipping may lead, of the distance to the clip of another seed; for the others 0.25,
which a lost residual exceeds where blocks weigh much. easycache repeats what the whole denoiser adds to its input.
"""
WRONG: list[tuple[dict[str, Any], str]] = [
    ({"teacache": True}, "WF-K001"),
    ({"magcache": True}, "WF-K010"),
    ({"feature_cache": {"algorithm": "teacache", "coefficients": LINE, "signal": "e"}}, "WF-K005"),
    ({"feature_cache": {"algorithm": "custom", "coefficients": LINE, "signal": "e0"}}, "WF-K044"),
    ({"feature_cache": {"algorithm": "firstblock"}}, "WF-K050"),
]
"""Requests that are refused for a model without numbers of its own whose signal is the first block's input."""


def asked(name: str, options: Mapping[str, Any], tail_blocks: int = 0) -> dict[str, Any]:
    """The request for a cache with these options. ``tail_blocks`` of dualblock: 0 leaves one of two blocks to skip."""
    own: dict[str, Any] = {"first": 1, "last": 0} if "residual_diff_threshold" in options else {}
    parts = {"front_blocks": 1, "tail_blocks": tail_blocks} if name == "dualblock" else {}
    return {"feature_cache": {"algorithm": name, **own, **parts, **options}}


def dense(name: str, tail_blocks: int = 0) -> dict[str, Any]:
    """The request at which nothing is skipped."""
    return asked(name, CACHES[name][0], tail_blocks)


def skipping(name: str, tail_blocks: int = 0) -> dict[str, Any]:
    """The request at which everything is skipped that may be."""
    return asked(name, CACHES[name][1], tail_blocks)


def codes(host: Host, pipe: Any, request: Mapping[str, Any]) -> set[str]:
    """The codes by which a session is refused."""
    with pytest.raises(Refused) as refused:
        host.session(pipe, dict(request))
    return {violation.code for violation in refused.value.refusal.violations}


@dataclass(frozen=True)
class Clips:
    """A pipeline, ``call`` that makes its clip, and the clip without a cache, of the same seed and of another one."""

    pipe: Any
    call: Callable[[Any], torch.Tensor]
    plain: torch.Tensor
    other: torch.Tensor


def check_what_is_skipped(name: str, host: Host, clips: Clips, identity: str, tail_blocks: int = 0) -> None:
    """The plain clip bit for bit where nothing is skipped; else all that may be, and nearer to it than chance is."""
    with host.session(clips.pipe, dense(name, tail_blocks)) as session:
        assert torch.equal(clips.call(session.pipe), clips.plain)
    with host.session(clips.pipe, skipping(name, tail_blocks)) as session:
        out = clips.call(session.pipe)
    report, computed = session.report, CACHES[name][2]
    assert report["effective"][name]["state"] == "effective" and report["fallbacks"] == []
    assert report["identity"] == identity
    rows = report["steps"]["caches"][name]["branches"]
    assert {branch: row["computed"] for branch, row in rows.items()} == dict.fromkeys(BRANCHES, computed)
    seen = report["effective"][name]["evidence"]
    assert (seen["computed"], seen["skipped"]) == (2 * len(computed), 2 * (STEPS - len(computed)))
    assert (0 < seen.get("host_syncs", 0) <= 2 * STEPS) == (name in WEIGHED)
    assert 0 < (out - clips.plain).norm() < COST.get(name, 0.25) * (clips.other - clips.plain).norm()


def check_a_new_begin(
    host: Host,
    pipe: Any,
    request: Mapping[str, Any],
    call: Callable[..., torch.Tensor],
    abort: Callable[[Any], None],
    other: Mapping[str, Any],
) -> None:
    """After a run that ``abort`` breaks off with a KeyError, and at the size of ``other``, a run is as in a session of
    its own, and nothing of the base has changed.
    """
    with host.session(pipe, dict(request)) as session:
        fresh = call(session.pipe, **other)
    with host.session(pipe, dict(request), verify_contents=True) as session:
        first = call(session.pipe)
        with pytest.raises(KeyError):
            abort(session)
        assert session.held_bytes() == 0
        assert torch.equal(call(session.pipe, **other), fresh)
        assert torch.equal(call(session.pipe), first)
        assert session.held_bytes() == 0


def other_size(name: str) -> dict[str, Any]:
    """Another height, and fewer steps where the request is not for a number of them."""
    return {"height": 48, "num_inference_steps": STEPS if name == "magcache" else 4}


@dataclass(frozen=True)
class Driver:
    """Calls the transformer as a pipeline does that names no branch: conditional before unconditional.

    ``given`` are the arguments of a call, ``times`` the timesteps of a run, ``more`` what else the run is told.
    """

    given: Mapping[str, Any]
    times: tuple[float, ...]
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def text(self) -> torch.Tensor:
        """The text of the call."""
        found: torch.Tensor = self.given["encoder_hidden_states"]
        return found

    def run(self, session: Any, texts: Iterable[torch.Tensor], swapped: int = -1) -> list[torch.Tensor]:
        """What each call gives; at the step ``swapped`` the branches are in the other order."""
        outs, texts = [], tuple(texts)
        with session.run(timesteps=self.times, branches=2, **self.more), torch.no_grad():
            for index, time in enumerate(self.times):
                for text in reversed(texts) if index == swapped else texts:
                    now = {
                        "hidden_states": self.given["hidden_states"] * (1.0 - 0.05 * index),
                        "timestep": torch.tensor([time]),
                        "encoder_hidden_states": text,
                    }
                    outs.append(session.pipe.transformer(**{**self.given, **now})[0])
        return outs


def check_branches(host: Host, pipe: Any, request: Mapping[str, Any], driver: Driver) -> Any:
    """No branch sees the other's tensors; where the driver changes their order, calls are computed, and told.

    Returns the report.
    """
    text = driver.text
    texts = text, text * 0.5
    with host.session(pipe, {}) as session:
        plain = driver.run(session, texts, swapped=3)
    with host.session(pipe, dict(request)) as session:
        outs = driver.run(session, texts)
        assert session.report["identity"] == "ordinal"
        others = driver.run(session, (text, text * 3.0))
        assert all(torch.equal(a, b) for a, b in zip(outs[::2], others[::2], strict=True))
        assert not torch.equal(outs[1], others[1])
        mixed = driver.run(session, texts, swapped=3)
        report = session.report
    assert all(torch.equal(a, b) for a, b in zip(mixed[:6], outs[:6], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mixed[6:8], plain[6:8], strict=True))
    assert report["identity"].startswith("ambiguous")
    assert [row["count"] for row in report["fallbacks"] if "could not be told" in row["reason"]] == [2]
    return report
