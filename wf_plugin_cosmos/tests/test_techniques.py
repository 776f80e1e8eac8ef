"""Feature caches of other plugins on tiny models, by request: each skips the steps that it may and no others, or is
refused with a code. The pipelines name no branch: a call is known by its number, its text and its timestep.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.cache_requests import (
    CACHES,
    LINE,
    STEPS,
    WRONG,
    Clips,
    Driver,
    asked,
    check_a_new_begin,
    check_branches,
    check_what_is_skipped,
    codes,
    other_size,
    skipping,
)
from wf_core import Host

TIMES = (0.9, 0.7, 0.5, 0.3, 0.2, 0.1)

pytestmark = [
    pytest.mark.usefixtures("torchvision"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def host() -> Host:
    return Host.discover()


@pytest.fixture(scope="module")
def made() -> dict[str, Clips]:
    """Clips without a cache, by kind, made when they are first asked for."""
    return {}


def clips_of(kind: str, made: dict[str, Clips], tiny: SimpleNamespace) -> Clips:
    if kind not in made:
        pipe, given = tiny.pipe(kind), tiny.arguments(kind, num_inference_steps=STEPS)
        plain, other = tiny.output(pipe, given), tiny.output(pipe, given, seed=1)
        made[kind] = Clips(pipe, lambda on: tiny.output(on, given), plain, other)
    return made[kind]


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
    name: str, kind: str, host: Host, tiny: SimpleNamespace, made: dict[str, Clips]
) -> None:
    check_what_is_skipped(name, host, clips_of(kind, made, tiny), "ordinal")


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_begins_anew_after_an_abort_and_at_another_size(
    name: str, host: Host, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe("p2"), tiny.arguments("p2", num_inference_steps=STEPS)

    def call(on: Any, **changes: Any) -> torch.Tensor:
        out: torch.Tensor = tiny.output(on, {**given, **changes})
        return out

    def stop(pipe: Any, index: int, *_: Any) -> Any:
        if index == 1:
            raise KeyError("enough")
        return {}

    def abort(session: Any) -> None:
        call(session.pipe, callback_on_step_end=stop)

    check_a_new_begin(host, pipe, skipping(name), call, abort, other_size(name))


@pytest.mark.parametrize("name", [*CACHES, "cfg-gate"])
def test_branches_are_kept_apart_or_computed(name: str, host: Host, tiny: SimpleNamespace) -> None:
    request = {"cfg_gate_step": 0.3} if name == "cfg-gate" else skipping(name)
    check_branches(host, tiny.pipe("p1"), request, Driver(tiny.call("p1"), TIMES, {"num_frames": 9}))


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
    [*WRONG, ({"feature_cache": {"algorithm": "dualblock", "residual_diff_threshold": 0.1}}, "WF-K051")],
)
def test_what_would_be_wrong_here_is_refused(
    request_: dict[str, Any], code: str, host: Host, tiny: SimpleNamespace
) -> None:
    assert code in codes(host, tiny.pipe("p2"), request_)


def test_published_numbers_are_known_by_the_models_name(host: Host, tiny: SimpleNamespace) -> None:
    model = "cosmos-predict1-7b-text2world"
    assert host.resolve(model, {"teacache": True}, device="h200").feature("teacache")
    with host.session(tiny.pipe("p1"), {"teacache": True}, facts={"model.id": model}) as session:
        tiny.output(session.pipe, tiny.arguments("p1", num_inference_steps=4))
        seen = session.report["effective"]["teacache"]["evidence"]
    assert (seen["source"], seen["signal"]) == ("preset cosmos-1.0-diffusion-7b.block0", "block0")
