"""Features of other plugins on tiny models, by request: each runs and is right, or is refused with a code."""

from __future__ import annotations

import copy
import threading
from types import SimpleNamespace
from typing import Any

import attrs
import pytest
import torch

from wf_core import Host, Refused
from wf_core.testing import fingerprint, host_of

STEPS = 6


@pytest.fixture(scope="module")
def host() -> Host:
    return Host.discover()


@pytest.fixture(scope="module")
def for_every_family(host: Host) -> Host:
    """The same plugins, as if every feature cache named every family: whether its code works here."""
    manifests = [record.manifest for record in host.plugins if record.manifest]
    return host_of(*(opened_up(m) if m.kind == "feature-cache" else m for m in manifests))


def opened_up(manifest: Any) -> Any:
    features = tuple(attrs.evolve(feature, families=("*",)) for feature in manifest.features)
    return attrs.evolve(manifest, features=features)


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


CACHES: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "easycache": ({"threshold": 0.0, "first": 1, "last": 0}, {"threshold": 5.0}),
    "firstblock": ({"residual_diff_threshold": 0.0, "first": 1, "last": 0}, {"residual_diff_threshold": 5.0}),
    "dynamicblock": (
        {"residual_diff_threshold": 0.0, "first": 1, "last": 0},
        {"residual_diff_threshold": 5.0},
    ),
    "teacache": ({"threshold": 0.0, "coefficients": [0, 0, 0, 1, 0]}, {"threshold": 5.0}),
    "magcache": ({"threshold": 0.0, "ratios": [1.0] * 2 * STEPS}, {"threshold": 0.2}),
}
"""Options at which nothing is skipped, and what makes them skip."""


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *((name, "t2v") for name in CACHES),
        ("firstblock", "replace"),
        ("firstblock", "1.5"),
        ("easycache", "1.5"),
    ],
)
def test_feature_caches_work_at_the_seams(
    name: str, kind: str, for_every_family: Host, base: dict[str, Any]
) -> None:
    """At a threshold of 0 the clip is the plain one to the bit; above it steps are skipped, and the clip is near it."""
    pipe, given, plain = base[kind]
    dense, more = CACHES[name]
    out, _ = run(for_every_family, pipe, given, {"feature_cache": {"algorithm": name, **dense}})
    assert torch.equal(out, plain)
    skipping = {"feature_cache": {"algorithm": name, **dense, **more}}
    out, report = run(for_every_family, pipe, given, skipping)
    assert state_of(report, name) == "effective"
    assert report["effective"][name]["evidence"]["skipped"] > 0
    assert not torch.equal(out, plain)
    assert float((out - plain).norm() / plain.norm()) < 0.3


@pytest.mark.parametrize("name", [*CACHES, "taylorseer"])
def test_as_declared_a_cache_runs_or_is_refused_with_a_code(
    name: str, host: Host, base: dict[str, Any]
) -> None:
    pipe, given, plain = base["t2v"]
    request = {"feature_cache": {"algorithm": name, **CACHES.get(name, ({}, {}))[0]}}
    try:
        out, _ = run(host, pipe, given, request)
    except Refused as refused:
        found = {violation.code for violation in refused.refusal.violations}
        assert found == {"WF-M001"}, "the plugin does not name this family, and that is all"
    else:
        assert torch.isfinite(out).all()


def test_seams_that_are_not_there_are_refused(for_every_family: Host, base: dict[str, Any]) -> None:
    pipe, given, _ = base["t2v"]
    for name in ("adacache", "blocktaylorseer"):
        assert "WF-M004" in codes(for_every_family, pipe, given, {"feature_cache": {"algorithm": name}})


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
