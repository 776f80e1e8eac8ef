"""Feature caches of other plugins on tiny models, by request: each skips the steps that it may and no others, or is
refused with a code. The pipelines name no branch: a call is known by its number, its text and its timestep.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
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
OF_BLOCKS = {"first": 1, "last": 0}
OF_PARTS = {"front_blocks": 1, "tail_blocks": 0}
WEIGHED = {"teacache", "custom", "easycache", "adacache", "firstblock", "dualblock", "dynamicblock"}
"""Those that look at values: they wait for the device, once a call at most."""

pytestmark = [
    pytest.mark.usefixtures("torchvision"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def host() -> Host:
    return Host.discover()


@pytest.fixture(scope="module")
def plains() -> dict[str, torch.Tensor]:
    """Clips without any feature, by kind."""
    return {}


def asked(name: str, options: dict[str, Any]) -> dict[str, Any]:
    own = {
        **(OF_BLOCKS if "residual_diff_threshold" in options else {}),
        **(OF_PARTS if name == "dualblock" else {}),
    }
    return {"feature_cache": {"algorithm": name, **own, **options}}


def skipping(name: str) -> dict[str, Any]:
    return asked(name, CACHES[name][1])


def run(host: Host, tiny: SimpleNamespace, kind: str, request: dict[str, Any], **more: Any) -> Any:
    given = tiny.arguments(kind, **{"num_inference_steps": STEPS, **more})
    with host.session(tiny.pipe(kind), request) as session:
        return tiny.output(session.pipe, given), session.report


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, kind) for name in CACHES for kind in ("p1", "p2")),
        *(
            (name, "transfer")
            for name in ("teacache", "adacache", "blocktaylorseer", "firstblock", "easycache")
        ),
        ("teacache", "p2.5"),
        ("teacache", "p2-image"),
    ],
)
def test_a_cache_skips_what_it_may_and_nothing_else(
    name: str, kind: str, host: Host, tiny: SimpleNamespace, plains: dict[str, torch.Tensor]
) -> None:
    dense, _, computed = CACHES[name]
    if kind not in plains:
        plains[kind] = tiny.output(tiny.pipe(kind), tiny.arguments(kind, num_inference_steps=STEPS))
    plain = plains[kind]
    out, _ = run(host, tiny, kind, asked(name, dense))
    assert torch.equal(out, plain)
    out, report = run(host, tiny, kind, skipping(name))
    assert report["effective"][name]["state"] == "effective" and report["fallbacks"] == []
    assert report["identity"] == "ordinal"
    rows = report["steps"]["caches"][name]["branches"]
    assert {branch: row["computed"] for branch, row in rows.items()} == dict.fromkeys(BRANCHES, computed)
    seen = report["effective"][name]["evidence"]
    assert (seen["computed"], seen["skipped"]) == (2 * len(computed), 2 * (STEPS - len(computed)))
    assert (0 < seen.get("host_syncs", 0) <= 2 * STEPS) == (name in WEIGHED)
    assert 0 < float((out - plain).norm() / plain.norm()) < 0.7


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_begins_anew_after_an_abort_and_at_another_size(
    name: str, host: Host, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe("p2"), tiny.arguments("p2", num_inference_steps=STEPS)
    other = {"height": 48, "num_inference_steps": STEPS if name == "magcache" else 4}
    fresh, _ = run(host, tiny, "p2", skipping(name), **other)

    def abort(pipe: Any, index: int, *_: Any) -> Any:
        if index == 1:
            raise KeyError("enough")
        return {}

    with host.session(pipe, skipping(name)) as session:
        first = tiny.output(session.pipe, given)
        with pytest.raises(KeyError):
            session.pipe(**given, callback_on_step_end=abort)
        assert session.held_bytes() == 0
        assert torch.equal(tiny.output(session.pipe, {**given, **other}), fresh)
        assert torch.equal(tiny.output(session.pipe, given), first)
        assert session.held_bytes() == 0


TIMES = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1)


def driven(
    session: Any, given: dict[str, Any], texts: tuple[torch.Tensor, torch.Tensor], swapped: int = -1
) -> list[torch.Tensor]:
    """What the transformer gives for each call, conditional before unconditional but at the step ``swapped``."""
    outs = []
    with session.run(timesteps=TIMES, branches=2, num_frames=9), torch.no_grad():
        for index, time in enumerate(TIMES):
            for text in reversed(texts) if index == swapped else texts:
                latents = given["hidden_states"] * (1.0 - 0.05 * index)
                now = {
                    "hidden_states": latents,
                    "timestep": torch.tensor([time]),
                    "encoder_hidden_states": text,
                }
                outs.append(session.pipe.transformer(**{**given, **now})[0])
    return outs


@pytest.mark.parametrize("name", [*CACHES, "cfg-gate"])
def test_branches_are_kept_apart_or_computed(name: str, host: Host, tiny: SimpleNamespace) -> None:
    """No branch sees the other's tensors; where the driver changes their order, calls are computed, and told."""
    pipe, given = tiny.pipe("p1"), tiny.call("p1")
    text = given["encoder_hidden_states"]
    texts = text, text * 0.5
    request = {"cfg_gate_step": 0.3} if name == "cfg-gate" else skipping(name)
    with host.session(pipe, {}) as session:
        dense = driven(session, given, texts, swapped=3)
    with host.session(pipe, request) as session:
        outs = driven(session, given, texts)
        others = driven(session, given, (text, text * 3.0))
        assert all(torch.equal(a, b) for a, b in zip(outs[::2], others[::2], strict=True))
        assert not torch.equal(outs[1], others[1])
        mixed = driven(session, given, texts, swapped=3)
        report = session.report
    assert all(torch.equal(a, b) for a, b in zip(mixed[:6], outs[:6], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mixed[6:8], dense[6:8], strict=True))
    assert report["identity"].startswith("ambiguous")
    assert [row["count"] for row in report["fallbacks"] if "could not be told" in row["reason"]] == [2]


@pytest.mark.parametrize(("times", "computed"), [(1.0 + 1e-4, [0]), (1.0 - 1e-4, [0, 3])])
def test_the_signal_is_the_first_blocks_modulated_input(
    times: float, computed: list[int], host: Host, tiny: SimpleNamespace
) -> None:
    """By hand from the stock norm, with the learned positions that Predict1 adds in front of it: a threshold a little
    above the sum of the changes is not reached, and one a little below is.
    """
    pipe, given = tiny.pipe("p1"), tiny.call("p1")
    calls = [
        {
            **given,
            "hidden_states": given["hidden_states"] * (1.0 - 0.05 * index),
            "timestep": torch.tensor([time]),
        }
        for index, time in enumerate(TIMES[:4])
    ]
    entered: list[torch.Tensor] = []
    stock = tiny.copy(pipe.transformer)
    stock.transformer_blocks[0].norm1.register_forward_hook(lambda _, __, out: entered.append(out[0]))
    for arguments in calls:
        stock(**arguments)
    changes = [float((new - old).abs().mean() / old.abs().mean()) for old, new in itertools.pairwise(entered)]
    options = {"coefficients": LINE, "threshold": sum(changes) * times, "last": 0}
    with host.session(pipe, asked("teacache", options)) as session:
        with session.run(timesteps=TIMES[:4], num_frames=9), torch.no_grad():
            for arguments in calls:
                session.pipe.transformer(**arguments)
        rows = session.report["steps"]["caches"]["teacache"]["branches"]
    assert rows["transformer/cond"]["computed"] == computed


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"teacache": True}, "WF-K001"),
        ({"magcache": True}, "WF-K010"),
        ({"feature_cache": {"algorithm": "teacache", "coefficients": LINE, "signal": "e"}}, "WF-K005"),
        ({"feature_cache": {"algorithm": "custom", "coefficients": LINE, "signal": "e0"}}, "WF-K044"),
        ({"feature_cache": {"algorithm": "dualblock", "residual_diff_threshold": 0.1}}, "WF-K051"),
    ],
)
def test_what_would_be_wrong_here_is_refused(
    request_: dict[str, Any], code: str, host: Host, tiny: SimpleNamespace
) -> None:
    with pytest.raises(Refused) as refused:
        host.session(tiny.pipe("p2"), request_)
    assert code in {violation.code for violation in refused.value.refusal.violations}


def test_published_numbers_are_known_by_the_models_name(host: Host, tiny: SimpleNamespace) -> None:
    model = "cosmos-predict1-7b-text2world"
    assert host.resolve(model, {"teacache": True}, device="h200").feature("teacache")
    with host.session(tiny.pipe("p1"), {"teacache": True}, facts={"model.id": model}) as session:
        tiny.output(session.pipe, tiny.arguments("p1", num_inference_steps=4))
        seen = session.report["effective"]["teacache"]["evidence"]
    assert (seen["source"], seen["signal"]) == ("preset cosmos-1.0-diffusion-7b.block0", "block0")
