"""Features of other plugins on tiny models, by request: each runs and is right, or is refused with a code."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core import Host, Refused
from wf_core.testing import fingerprint

STEPS = 6


@pytest.fixture(scope="module")
def host() -> Host:
    return Host.discover()


@pytest.fixture(scope="module")
def base(tiny: SimpleNamespace) -> dict[str, Any]:
    """Per kind: a pipeline, a call's arguments, and the clip without any feature."""
    found = {}
    for kind in ("t2v", "replace", "1.5"):
        pipe, given = tiny.pipe(kind), tiny.arguments(kind, num_inference_steps=STEPS)
        found[kind] = pipe, given, call(pipe, given)
    return found


def call(pipe: Any, given: dict[str, Any]) -> torch.Tensor:
    frames: torch.Tensor = pipe(**given, generator=torch.Generator().manual_seed(0)).frames
    return frames


def run(host: Host, pipe: Any, given: dict[str, Any], request: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    with host.session(pipe, request) as session:
        out = call(session.pipe, given)
    return out, session.report


def codes(host: Host, pipe: Any, given: dict[str, Any], request: dict[str, Any]) -> set[str]:
    with pytest.raises(Refused) as refused:
        run(host, pipe, given, request)
    return {violation.code for violation in refused.value.refusal.violations}


def state_of(report: Any, feature: str) -> str:
    return str(report["effective"][feature]["state"])


@pytest.mark.parametrize(
    ("name", "kind"),
    [("sdpa", "t2v"), ("math", "t2v"), ("flex", "t2v"), ("math", "replace"), ("sdpa", "1.5")],
)
def test_providers_of_attention_are_right_on_padded_prompts(
    name: str, kind: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, plain = base[kind]
    out, report = run(host, pipe, given, {"attention_backend": name})
    assert state_of(report, name) == "effective"
    assert report["effective"][name]["evidence"]["successes"] == STEPS * 2 * (3 if kind == "1.5" else 4)
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


@pytest.mark.parametrize("name", ["flash2", "sage2", "cudnn"])
def test_providers_that_this_machine_lacks_are_refused(name: str, host: Host, base: dict[str, Any]) -> None:
    if torch.cuda.is_available():
        pytest.skip("they may run here")
    pipe, given, _ = base["t2v"]
    assert codes(host, pipe, given, {"attention_backend": name}) & {"WF-A001", "WF-A020", "WF-A040"}


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_packed_projections_are_right(kind: str, host: Host, base: dict[str, Any]) -> None:
    pipe, given, plain = base[kind]
    out, report = run(host, pipe, given, {"fuse_qkv": True})
    assert state_of(report, "fuse-qkv") == "effective"
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


# --- feature caches ---------------------------------------------------------------------------------------------------

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
OF_PARTS = {"front_blocks": 1, "tail_blocks": 1}
WEIGHED = {"teacache", "custom", "easycache", "adacache", "firstblock", "dualblock", "dynamicblock"}
"""Those that look at values: they wait for the device, once a call at most."""


def asked(name: str, options: dict[str, Any]) -> dict[str, Any]:
    own = {
        **(OF_BLOCKS if "residual_diff_threshold" in options else {}),
        **(OF_PARTS if name == "dualblock" else {}),
    }
    return {"feature_cache": {"algorithm": name, **own, **options}}


def skipping(name: str) -> dict[str, Any]:
    return asked(name, CACHES[name][1])


@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5"])
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_skips_what_it_may_and_nothing_else(
    name: str, kind: str, host: Host, base: dict[str, Any]
) -> None:
    """Named branches, branches that are told by the number of the call alone, and a guider's."""
    pipe, given, plain = base[kind]
    dense, _, computed = CACHES[name]
    out, _ = run(host, pipe, given, asked(name, dense))
    assert torch.equal(out, plain)
    out, report = run(host, pipe, given, skipping(name))
    assert state_of(report, name) == "effective" and report["fallbacks"] == []
    rows = report["steps"]["caches"][name]["branches"]
    assert {branch: row["computed"] for branch, row in rows.items()} == dict.fromkeys(BRANCHES, computed)
    seen = report["effective"][name]["evidence"]
    assert (seen["computed"], seen["skipped"]) == (2 * len(computed), 2 * (STEPS - len(computed)))
    assert (0 < seen.get("host_syncs", 0) <= 2 * STEPS) == (name in WEIGHED)
    assert report["identity"] == ("ordinal" if kind == "replace" else "context-name")
    assert 0 < float((out - plain).norm() / plain.norm()) < 0.3


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_begins_anew_after_an_abort_and_at_another_size(
    name: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, _ = base["t2v"]
    other = {**given, "height": 48, "num_inference_steps": 4}
    if name == "magcache":
        other["num_inference_steps"] = STEPS
    fresh, _ = run(host, pipe, other, skipping(name))
    with host.session(pipe, skipping(name)) as session:
        first = call(session.pipe, given)
        calls = 0

        def fail(*_: Any) -> None:
            nonlocal calls
            calls += 1
            if calls == 4:
                raise KeyError("stop here")

        handle = session.pipe.transformer.norm_out.register_forward_pre_hook(fail)
        with pytest.raises(KeyError):
            call(session.pipe, given)
        handle.remove()
        assert session.held_bytes() == 0
        assert torch.equal(call(session.pipe, other), fresh)
        assert torch.equal(call(session.pipe, given), first)
        assert session.held_bytes() == 0


BRANCHES = ("transformer/cond", "transformer/uncond")
TIMES = (900.0, 700.0, 500.0, 300.0, 200.0, 100.0)


def driven(
    session: Any, given: dict[str, Any], texts: tuple[torch.Tensor, torch.Tensor], swapped: int = -1
) -> list[torch.Tensor]:
    """What the transformer gives for each call of a driver that names no branch, conditional before unconditional but
    at the step ``swapped``.
    """
    outs = []
    with session.run(timesteps=TIMES, branches=2), torch.no_grad():
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


@pytest.mark.parametrize("name", CACHES)
def test_branches_that_nobody_names_are_kept_apart_or_computed(
    name: str, host: Host, base: dict[str, Any], tiny: SimpleNamespace
) -> None:
    """No branch sees the other's tensors; where the driver changes their order, calls are computed, and told."""
    pipe, given = base["t2v"][0], tiny.call("t2v")
    text = given["encoder_hidden_states"]
    texts = text, text * 0.5
    with host.session(pipe, {}) as session:
        dense = driven(session, given, texts, swapped=3)
    with host.session(pipe, skipping(name)) as session:
        outs = driven(session, given, texts)
        assert session.report["identity"] == "ordinal"
        others = driven(session, given, (text, text * 3.0))
        assert all(torch.equal(a, b) for a, b in zip(outs[::2], others[::2], strict=True))
        assert not torch.equal(outs[1], others[1])
        mixed = driven(session, given, texts, swapped=3)
        report = session.report
    assert all(torch.equal(a, b) for a, b in zip(mixed[:6], outs[:6], strict=True))
    assert all(torch.equal(a, b) for a, b in zip(mixed[6:8], dense[6:8], strict=True))
    assert report["identity"].startswith("ambiguous")
    assert {row["reason"][:46]: row["count"] for row in report["fallbacks"]} == {
        "the step and branch of a call could not be tol": 2
    }


def test_blocks_of_both_kinds_are_counted_together(host: Host, base: dict[str, Any]) -> None:
    """Two blocks in front and one in the tail of two and two: one is left to skip, from the first call on."""
    pipe, given, _ = base["t2v"]
    parts = {"residual_diff_threshold": 10.0, "front_blocks": 2}
    _, report = run(host, pipe, given, asked("dualblock", {**parts, "tail_blocks": 1}))
    seen = report["effective"]["dualblock"]["evidence"]
    assert (seen["blocks_computed"], seen["blocks_skipped"]) == (2 * 4 + 10 * 3, 10)
    with pytest.raises(Refused, match="the last 2 of 4 blocks run at every step"):
        run(host, pipe, given, asked("dualblock", {**parts, "tail_blocks": 2}))


def test_a_model_without_blocks_to_skip_is_refused(host: Host, tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("t2v", transformer=tiny.model("t2v", num_layers=1, num_single_layers=0))
    with (
        host.session(pipe, skipping("firstblock")) as session,
        pytest.raises(Refused, match="leave none to skip"),
    ):
        call(session.pipe, tiny.arguments("t2v"))


@pytest.mark.parametrize(
    ("request_", "code"),
    [
        ({"cfg_gate_step": 0.5}, "WF-M001"),
        ({"teacache": True}, "WF-K001"),
        ({"magcache": True}, "WF-K010"),
        ({"feature_cache": {"algorithm": "teacache", "coefficients": LINE, "signal": "e"}}, "WF-K005"),
        ({"feature_cache": {"algorithm": "custom", "coefficients": LINE, "signal": "e0"}}, "WF-K044"),
        ({"feature_cache": {"algorithm": "firstblock"}}, "WF-K050"),
    ],
)
def test_what_would_be_wrong_here_is_refused(
    request_: dict[str, Any], code: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, _ = base["t2v"]
    assert code in codes(host, pipe, given, request_)


@pytest.mark.parametrize(
    ("model", "source", "name"),
    [
        ("hunyuanvideo", "preset hunyuanvideo.block0", "teacache"),
        ("hunyuanvideo-1.5-t2v-480p", "preset hunyuanvideo-1.5-t2v-480p.block0", "custom"),
        ("hunyuanvideo", "preset hunyuanvideo-720p", "magcache"),
        ("hunyuanvideo-1.5-i2v-480p", "preset hunyuanvideo-1.5-i2v-480p", "magcache"),
    ],
)
def test_published_numbers_are_known_by_the_models_name(
    model: str, source: str, name: str, host: Host, base: dict[str, Any]
) -> None:
    plan = host.resolve(model, {"feature_cache": name}, device="h200")
    assert [feature.name for feature in plan.features] == [name]
    pipe, given, _ = base["t2v"]
    known = {"model.id": model}
    with host.session(pipe, {"feature_cache": name}, facts=known) as session:
        call(session.pipe, given)
        assert session.report["effective"][name]["evidence"]["source"] == source


# --- sessions through the host --------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["replace", "1.5"])
def test_an_aborted_run_leaves_the_base_and_the_next_run_right(
    kind: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, plain = base[kind]
    before = fingerprint(pipe, contents=True)
    with host.session(pipe, {"attention_backend": "math"}, verify_contents=True) as session:
        root = session.pipe.transformer

        def fail(*_: Any) -> Any:
            raise KeyError("stop here")

        handle = root.norm_out.register_forward_pre_hook(fail)
        with pytest.raises(KeyError):
            call(session.pipe, given)
        handle.remove()
        again = call(session.pipe, given)
    torch.testing.assert_close(again, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))
    assert before.diff(fingerprint(pipe, contents=True), run_state=False) == []
    assert torch.equal(call(pipe, given), plain)


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_two_threads_on_one_base_do_not_meet(kind: str, host: Host, base: dict[str, Any]) -> None:
    pipe, given, plain = base[kind]
    outs: dict[str, torch.Tensor] = {}

    def work(name: str, request: dict[str, Any]) -> None:
        outs[name] = run(host, pipe, given, request)[0]

    requests = {"plain": {}, "math": {"attention_backend": "math"}}
    threads = [threading.Thread(target=work, args=item) for item in requests.items()]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert torch.equal(outs["plain"], plain)
    torch.testing.assert_close(outs["math"], plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


# --- CUDA -------------------------------------------------------------------------------------------------------------


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5"])
def test_on_cuda_a_kernel_without_masks_serves_padded_prompts(
    kind: str, host: Host, tiny: SimpleNamespace
) -> None:
    own = {"transformer": tiny.model(kind, torch.bfloat16), "vae": tiny.vae(kind)}  # shared by all tests
    pipe = tiny.pipe(kind, **{name: copy.deepcopy(module).cuda() for name, module in own.items()})
    given = tiny.arguments(kind, num_inference_steps=2)
    plain = call(pipe, given)
    through, _ = run(host, pipe, given, {})
    assert torch.equal(through, plain)
    out, report = run(host, pipe, given, {"attention_backend": "torch_flash"})
    assert state_of(report, "torch-flash") == "effective"
    assert not report["fallbacks"]
    assert float((out.float() - plain.float()).norm() / plain.float().norm()) < 3e-2


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5", "1.5-image"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_on_cuda_the_outer_seams_are_bit_identical(
    dtype: torch.dtype, kind: str, tiny: SimpleNamespace
) -> None:
    model = copy.deepcopy(tiny.model(kind, dtype)).cuda()
    given = tiny.call(kind, dtype, (5, 8))
    given = {k: v.cuda() if isinstance(v, torch.Tensor) else v for k, v in given.items()}
    stock = model(**given)[0]
    for seams in (("stack",), ("stack", "block", "modulation", "linear")):
        assert torch.equal(tiny.open(model, *seams).once(given), stock), seams
