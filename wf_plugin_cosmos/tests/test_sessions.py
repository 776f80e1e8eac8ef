"""Sessions through the host: the plain clip bit for bit, aborted runs, threads, and techniques on every generation."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core import BaseModified, Host, Refused
from wf_core.testing import copy_pipeline, host_of

KINDS = ("p1", "p1-video", "p2-image", "p2", "p2.5", "transfer")
DTYPES = (torch.float32, torch.bfloat16)

pytestmark = [
    pytest.mark.usefixtures("torchvision"),
    pytest.mark.filterwarnings("ignore:__array__ implementation:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def host() -> Host:
    return Host.discover()


def effective(session: Any, feature: str) -> Any:
    return session.report["effective"][feature]["evidence"]


def codes(host: Host, pipe: Any, request: dict[str, Any]) -> set[str]:
    with pytest.raises(Refused) as refused:
        host.session(pipe, request)
    return {violation.code for violation in refused.value.refusal.violations}


# --- plain ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "dtype"), list(zip(KINDS, cycle(DTYPES), strict=False)), ids=str)
def test_a_plain_session_is_stock_and_leaves_the_base(
    kind: str, dtype: torch.dtype, host: Host, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe(kind, dtype), tiny.arguments(kind, dtype)
    plain = tiny.output(pipe, given)
    with host.session(pipe, {}, verify_contents=True) as session:
        assert torch.equal(tiny.output(session.pipe, given), plain)
        assert session.report["identity"] == "ordinal"
    assert torch.equal(tiny.output(pipe, given), plain)


def test_an_aborted_run_leaves_nothing(host: Host, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("p2"), tiny.arguments("p2")
    plain = tiny.output(pipe, given)

    def abort(*_: Any) -> Any:
        raise KeyError("enough")

    request = {"static_cross_kv": True, "attention_backend": "sdpa"}
    with host.session(pipe, request, verify_contents=True) as session:
        for _ in range(2):
            with pytest.raises(KeyError, match="enough"):
                session.pipe(**given, callback_on_step_end=abort)
            assert session.held_bytes() == 0
            assert torch.equal(tiny.output(session.pipe, given), plain)


@pytest.fixture
def interleaving() -> Iterator[None]:
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(before)


def test_two_sessions_in_two_threads_equal_their_solo_runs(
    interleaving: None, host: Host, tiny: SimpleNamespace
) -> None:
    pipe = tiny.pipe("p2")
    jobs = [tiny.arguments("p2", num_frames=frames, output_type="pt") for frames in (5, 9)]
    requests: list[dict[str, Any]] = [{}, {"static_cross_kv": True}]
    solo, together = [tiny.output(pipe, given) for given in jobs], [torch.empty(0)] * 2
    barrier = threading.Barrier(2)

    def work(index: int) -> None:
        with host.session(pipe, requests[index]) as session:
            barrier.wait()
            together[index] = tiny.output(session.pipe, jobs[index])

    threads = [threading.Thread(target=work, args=(index,)) for index in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(together, solo, strict=True))


def test_a_call_that_cannot_be_made_is_refused_before_the_model(host: Host, tiny: SimpleNamespace) -> None:
    with host.session(tiny.pipe("p2"), {}) as session:
        with pytest.raises(Refused, match="nearest legal values are 9 and 13"):
            tiny.output(session.pipe, tiny.arguments("p2", num_frames=10))
        assert tiny.output(session.pipe, tiny.arguments("p2")).shape[2] == 2


# --- techniques, by request -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("kind", "backend", "bound"),
    [("p2", "sdpa", 0.0), ("transfer", "sdpa", 0.0), ("p1", "math", 1e-5), ("transfer", "flex", 1e-5)],
)
def test_attention_providers_serve_every_attention(
    kind: str, backend: str, bound: float, host: Host, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe(kind), tiny.arguments(kind)
    plain = tiny.output(pipe, given)
    with host.session(pipe, {"attention_backend": backend}) as session:
        ours = tiny.output(session.pipe, given)
    blocks, sites = (3, 3) if kind == "transfer" else (2, 2)
    assert effective(session, backend)["successes"] == 2 * 2 * blocks * sites
    assert float((ours - plain).norm() / plain.norm()) <= bound


@pytest.mark.parametrize("kind", ["p1-video", "p2.5"])
def test_text_products_are_computed_once_and_exact(kind: str, host: Host, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe(kind), tiny.arguments(kind)
    plain = tiny.output(pipe, given)
    with host.session(pipe, {"static_cross_kv": True}) as session:
        assert torch.equal(tiny.output(session.pipe, given), plain)
    layers, branches, steps = 2 * 2, 2, 2
    seen = effective(session, "static-cross-kv")
    assert (seen["misses"], seen["hits"]) == (layers * branches, layers * branches * (steps - 1))
    assert session.report["fallbacks"] == []


def test_packed_projections_are_close(host: Host, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("p2"), tiny.arguments("p2")
    plain = tiny.output(pipe, given)
    with host.session(pipe, {"fuse_qkv": True}) as session:
        ours = tiny.output(session.pipe, given)
    assert effective(session, "fuse-qkv")["fused_blocks"] == len(pipe.transformer.transformer_blocks)
    assert float((ours - plain).norm() / plain.norm()) <= 1e-6


ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}
"""Facts of a machine on which the fused kernels run; here their torch forms compute."""


@pytest.mark.parametrize(
    ("kind", "per_frame"), [("p1-video", 0), ("p2-image", 0), ("p2", 4), ("p2.5", 4), ("transfer", 8)]
)
def test_modulation_is_computed_by_frame_where_frames_have_timesteps(
    kind: str, per_frame: int, host: Host, tiny: SimpleNamespace
) -> None:
    """In every call, also in a first chunk of Transfer2.5, which is given no frames, and in a second, which is."""
    pipe, given = tiny.pipe(kind), tiny.arguments(kind, **(LONG if kind == "transfer" else {}))
    plain = tiny.output(pipe, given)
    with host.session(pipe, {"fused_modulation": True}, facts=ELSEWHERE) as session:
        ours = tiny.output(session.pipe, given)
    assert float((ours - plain).norm() / plain.norm()) <= 1e-5
    seen = effective(session, "fused-modulation")
    assert seen.get("deduplicated_calls", 0) == per_frame
    assert seen["reference_calls"] > 0 and session.report["fallbacks"] == []


def test_guidance_is_computed_for_the_first_steps_alone(host: Host, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe("p1"), tiny.arguments("p1", num_inference_steps=4)
    plain = tiny.output(pipe, given)
    with host.session(pipe, {"cfg_gate_step": 0.5}) as session:
        ours = tiny.output(session.pipe, given)
    seen = effective(session, "cfg-gate")
    assert (seen["computed"], seen["skipped"]) == (6, 2)
    assert 0 < float((ours - plain).norm() / plain.norm()) < 0.2


class Residuals:
    """What magcache does, by hand on the stock blocks: outside the computed steps the residual of the last of these."""

    def __init__(self, root: Any, computed: set[int]) -> None:
        self._call, self._computed = -1, computed
        self._entered: torch.Tensor
        self._kept: dict[int, torch.Tensor] = {}
        root.register_forward_pre_hook(self._begin)
        for block in root.transformer_blocks:
            self._replace(block, block is root.transformer_blocks[0], block is root.transformer_blocks[-1])

    def _begin(self, *_: Any) -> None:
        self._call += 1

    def _replace(self, block: Any, first: bool, last: bool) -> None:
        stock = block.forward

        def forward(x: torch.Tensor, *rest: Any) -> torch.Tensor:
            step, branch = divmod(self._call, 2)
            if step not in self._computed:
                return x + self._kept[branch] if first else x
            self._entered = x if first else self._entered
            out: torch.Tensor = stock(x, *rest)
            if last:
                self._kept[branch] = out - self._entered
            return out

        block.forward = forward


@pytest.mark.parametrize("kind", ["p1-video", "transfer"])
def test_a_skipped_step_is_what_it_is_by_hand(kind: str, host: Host, tiny: SimpleNamespace) -> None:
    pipe, given = tiny.pipe(kind), tiny.arguments(kind, num_inference_steps=6)
    options = {"ratios": [1.0] * 6, "threshold": 1.0, "retention_ratio": 0.0}
    with host.session(pipe, {"feature_cache": {"algorithm": "magcache", **options}}) as session:
        ours = tiny.output(session.pipe, given)
        rows = session.report["steps"]["caches"]["magcache"]["branches"]
    (computed,) = {tuple(row["computed"]) for row in rows.values()}
    assert 0 < len(computed) < 6
    by_hand = copy_pipeline(pipe, ("transformer", "vae"))
    Residuals(by_hand.transformer, set(computed))
    assert torch.equal(ours, tiny.output(by_hand, given))


# --- several chunks ---------------------------------------------------------------------------------------------------

LONG = {"controls": torch.zeros(1, 9, 3, 32, 48), "num_frames": 9}
"""Two chunks of 5 frames, which share one."""


@pytest.mark.parametrize(
    ("request_", "feature"),
    [
        ({"static_cross_kv": True}, "static-cross-kv"),
        ({"deterministic": True}, "deterministic"),
        ({"attention_policy": "flash"}, "attention-policy"),
    ],
    ids=str,
)
def test_what_only_counts_calls_or_keeps_text_runs_over_several_chunks(
    request_: dict[str, Any], feature: str, host: Host, tiny: SimpleNamespace
) -> None:
    pipe, given = tiny.pipe("transfer"), tiny.arguments("transfer", **LONG)
    plain = tiny.output(pipe, given)
    with host.session(pipe, request_) as session:
        assert torch.equal(tiny.output(session.pipe, given), plain)
        claim = session.report["effective"][feature]
        assert claim["state"] == "effective"
        assert session.report["identity"] == "ordinal"
        assert session.report["steps"]["calls"] == {"transformer/cond": 4, "transformer/uncond": 4}
    if feature == "static-cross-kv":  # each of the two texts once, and not once more per chunk
        evidence = claim["evidence"]
        assert evidence["hits"] == 3 * evidence["misses"] > 0


def test_what_goes_by_the_steps_is_refused_over_several_chunks(host: Host, tiny: SimpleNamespace) -> None:
    with host.session(tiny.pipe("transfer"), {"cfg_gate_step": 0.5}) as session:
        with pytest.raises(Refused, match=r"in 2 chunks.*what cfg-gate may keep.*at most 5 frames"):
            tiny.output(session.pipe, tiny.arguments("transfer", **LONG))
        assert tiny.output(session.pipe, tiny.arguments("transfer", num_inference_steps=4)).isfinite().all()


OTHERS = """
schema = 1
name = "others"
api = 1
kind = "fusion"
summary = "Residuals that go by the calls before, and residuals that do not"

[[feature]]
name = "{name}"
tier = "exact"
seams = ["gated_residual"]
effects = [{effects}]
evidence = [{{ counter = "calls", at_least = 1 }}]
example = {{ {name} = true }}

[[switch]]
name = "{name}"
feature = "{name}"
form = "flag"
off = [false]
doc = "Residuals of somebody else."
"""
CODE = """
from wf_core.api import Technique, hookimpl


class Residual(Technique):
    def handlers(self):
        return {"gated_residual": self.add}

    def add(self, inner, site, *args):
        self.counters.add("calls")
        return inner(*args)


@hookimpl
def wf_fusion(feature, options, facts):
    return Residual()
"""


@pytest.mark.parametrize(("name", "effects"), [("remembers", '"host-state@gated_residual"'), ("plain", "")])
def test_what_somebody_else_declares_as_state_is_refused_over_several_chunks(
    name: str, effects: str, tiny: SimpleNamespace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no cache of the host's, but a technique of its own: what it declares decides."""
    package = tmp_path / f"wf_plugin_{name}"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    (package / "wf-plugin.toml").write_text(OTHERS.format(name=name, effects=effects))
    monkeypatch.syspath_prepend(str(tmp_path))
    given = tiny.arguments("transfer", **LONG, num_inference_steps=1, output_type="latent")
    with host_of("wf_plugin_cosmos", package / "wf-plugin.toml").session(
        tiny.pipe("transfer"), {name: True}
    ) as session:
        if not effects:
            assert tiny.output(session.pipe, given).isfinite().all()
            return
        with pytest.raises(Refused, match=r"in 2 chunks.*what remembers may keep.*at most 5 frames"):
            tiny.output(session.pipe, given)


# --- the dtype of the weights -----------------------------------------------------------------------------------------


def test_a_cast_transformer_is_refused_where_the_stock_pipeline_would_fail(
    host: Host, tiny: SimpleNamespace
) -> None:
    """``torch_dtype`` casts the transformer: not the text, and not the control network of Transfer2.5."""
    request = {"torch_dtype": "bfloat16"}
    with host.session(tiny.pipe("transfer"), request) as session:
        with pytest.raises(Refused, match="the control network is in float32, and the transformer is in bfl"):
            tiny.output(session.pipe, tiny.arguments("transfer", torch.bfloat16))
    with host.session(tiny.pipe("p2"), request) as session:
        with pytest.raises(Refused, match="the prompt is embedded in float32"):
            tiny.output(session.pipe, tiny.arguments("p2"))
        ours = tiny.output(session.pipe, tiny.arguments("p2", torch.bfloat16))
    assert torch.equal(
        ours, tiny.output(tiny.pipe("p2", torch.bfloat16), tiny.arguments("p2", torch.bfloat16))
    )


# --- the safety checker -----------------------------------------------------------------------------------------------


class Guard(torch.nn.Module):
    """A safety checker of registered weights, which get other memory when the pipeline moves them there and back."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.Linear(2, 2)
        self.device, self.dtype = torch.device("cpu"), torch.float32

    def to(self, *_: Any, **__: Any) -> Guard:
        for parameter in self.parameters():
            parameter.data = parameter.data.clone()
        return self

    def check_text_safety(self, prompt: str) -> bool:
        return True

    def check_video_safety(self, frames: Any) -> Any:
        return frames


@pytest.mark.parametrize("kind", ["p2", "transfer"])
def test_a_safety_checker_that_the_pipeline_moves_is_no_change_of_the_base(
    kind: str, host: Host, tiny: SimpleNamespace
) -> None:
    guard = Guard()
    pipe, given = tiny.pipe(kind, safety_checker=guard), tiny.arguments(kind)
    before = guard.model.weight.data_ptr()
    with host.session(pipe, {"static_cross_kv": True}, verify_contents=True) as session:
        tiny.output(session.pipe, given)
    assert guard.model.weight.data_ptr() != before, "it was moved"


def tamper_weights(guard: Any) -> None:
    guard.model.weight.data += 1


TAMPER = {
    "hooks": lambda guard: guard.register_forward_pre_hook(lambda *_: None),
    "dtype": lambda guard: guard.half(),
    "gradients": lambda guard: guard.requires_grad_(False),
    "buffer": lambda guard: guard.register_buffer("more", torch.zeros(1)),
    "weights": tamper_weights,
}


@pytest.mark.parametrize("how", TAMPER)
def test_a_safety_checker_that_is_changed_is_a_change_of_the_base(
    how: str, host: Host, tiny: SimpleNamespace
) -> None:
    guard, tamper = Guard(), TAMPER[how]
    contents = how == "weights"
    session = host.session(tiny.pipe("p2", safety_checker=guard), {}, verify_contents=contents)
    tamper(guard)
    with pytest.raises(BaseModified, match="safety_checker"):
        session.close()


# --- refused ----------------------------------------------------------------------------------------------------------


def test_tiling_of_predict1_is_refused(host: Host, tiny: SimpleNamespace) -> None:
    """Its stock VAE takes the switch and decodes in one piece all the same."""
    assert "WF-V003" in codes(host, tiny.pipe("p1"), {"vae_tiling": True})
    host.session(tiny.pipe("p2"), {"vae_tiling": True}).close()
