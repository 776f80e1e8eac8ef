"""Features of other plugins on tiny models, by request: each runs and is right, or is refused with a code."""

from __future__ import annotations

import copy
import itertools
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.cache_requests import (
    CACHES,
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
from wf_core import Host, Refused
from wf_core.testing import fingerprint


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


def call(pipe: Any, given: dict[str, Any], seed: int = 0) -> torch.Tensor:
    frames: torch.Tensor = pipe(**given, generator=torch.Generator().manual_seed(seed)).frames
    return frames


def run(host: Host, pipe: Any, given: dict[str, Any], request: dict[str, Any]) -> tuple[torch.Tensor, Any]:
    with host.session(pipe, request) as session:
        out = call(session.pipe, given)
    return out, session.report


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
    pipe = base["t2v"][0]
    assert codes(host, pipe, {"attention_backend": name}) & {"WF-A001", "WF-A020", "WF-A040"}


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_packed_projections_are_right(kind: str, host: Host, base: dict[str, Any]) -> None:
    pipe, given, plain = base[kind]
    out, report = run(host, pipe, given, {"fuse_qkv": True})
    assert state_of(report, "fuse-qkv") == "effective"
    torch.testing.assert_close(out, plain, rtol=0, atol=1e-5 * float(plain.abs().max()))


# --- feature caches ---------------------------------------------------------------------------------------------------

TAIL = 1
"""Blocks of dualblock's tail: two and two blocks leave two to skip."""
TIMES = (900.0, 700.0, 500.0, 300.0, 200.0, 100.0)


@pytest.fixture(scope="module")
def clips(base: dict[str, Any]) -> dict[str, Clips]:
    """What a cache's clips are compared with, by kind."""
    return {
        kind: Clips(pipe, lambda on, given=given: call(on, given), plain, call(pipe, given, seed=1))
        for kind, (pipe, given, plain) in base.items()
    }


@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5"])
@pytest.mark.parametrize("name", CACHES)
def test_a_cache_skips_what_it_may_and_nothing_else(
    name: str, kind: str, host: Host, clips: dict[str, Clips]
) -> None:
    """Named branches, branches that are told by the number of the call alone, and a guider's."""
    identity = "ordinal" if kind == "replace" else "context-name"
    check_what_is_skipped(name, host, clips[kind], identity, TAIL)


@pytest.mark.parametrize("name", CACHES)
def test_a_cache_begins_anew_after_an_abort_and_at_another_size(
    name: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, _ = base["t2v"]

    def abort(session: Any) -> None:
        calls = itertools.count(1)

        def fail(*_: Any) -> None:
            if next(calls) == 4:
                raise KeyError("stop here")

        handle = session.pipe.transformer.norm_out.register_forward_pre_hook(fail)
        try:
            call(session.pipe, given)
        finally:
            handle.remove()

    def again(on: Any, **changes: Any) -> torch.Tensor:
        return call(on, {**given, **changes})

    check_a_new_begin(host, pipe, skipping(name, TAIL), again, abort, other_size(name))


@pytest.mark.parametrize("name", CACHES)
def test_branches_that_nobody_names_are_kept_apart_or_computed(
    name: str, host: Host, base: dict[str, Any], tiny: SimpleNamespace
) -> None:
    report = check_branches(host, base["t2v"][0], skipping(name, TAIL), Driver(tiny.call("t2v"), TIMES))
    assert len(report["fallbacks"]) == 1


def test_blocks_of_both_kinds_are_counted_together(host: Host, base: dict[str, Any]) -> None:
    """Two blocks in front and one in the tail of two and two: one is left to skip, from the first call on."""
    pipe, given, _ = base["t2v"]
    parts = {"residual_diff_threshold": 10.0, "front_blocks": 2}
    _, report = run(host, pipe, given, asked("dualblock", {**parts, "tail_blocks": 1}))
    seen = report["effective"]["dualblock"]["evidence"]
    assert (seen["blocks_computed"], seen["blocks_skipped"]) == (2 * 4 + 10 * 3, 10)
    with pytest.raises(Refused, match="WF-K051"):
        run(host, pipe, given, asked("dualblock", {**parts, "tail_blocks": 2}))


def test_a_model_without_blocks_to_skip_is_refused(host: Host, tiny: SimpleNamespace) -> None:
    pipe = tiny.pipe("t2v", transformer=tiny.model("t2v", num_layers=1, num_single_layers=0))
    with (
        host.session(pipe, skipping("firstblock")) as session,
        pytest.raises(Refused, match="leave none to skip"),
    ):
        call(session.pipe, tiny.arguments("t2v"))


@pytest.mark.parametrize(("request_", "code"), [*WRONG, ({"cfg_gate_step": 0.5}, "WF-M001")])
def test_what_would_be_wrong_here_is_refused(
    request_: dict[str, Any], code: str, host: Host, base: dict[str, Any]
) -> None:
    assert code in codes(host, base["t2v"][0], request_)


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
