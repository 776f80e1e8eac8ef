"""Forwards of one denoiser side by side: its stock form, a session with nothing in it, and the exact stack."""

from __future__ import annotations

import copy
import gc
import statistics
import traceback
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import attrs
import torch
from device_time import milliseconds_of

from wf_core import Host, Refused

PREFERRED: Mapping[str, Any] = {
    "attention_backend": "auto",
    "fused_rope": True,
    "fused_modulation": True,
    "fused_gelu": True,
    "fuse_qkv": True,
    "static_cross_kv": True,
}
"""Asked for in this order; what the host does not take for a model is left out."""


def accepted(host: Host, model: Any) -> tuple[dict[str, Any], dict[str, str]]:
    """What the host takes of the preferred request for this model, and why it does not take the rest."""
    request: dict[str, Any] = {}
    dropped = {}
    for key, value in PREFERRED.items():
        try:
            host.resolve(model, {**request, key: value})
        except Refused as refused:
            dropped[key] = str(refused)
        else:
            request[key] = value
    return request, dropped


def relative(ours: torch.Tensor, other: torch.Tensor) -> float:
    """``||ours - other|| / ||other||`` in float64."""
    exact = other.double()
    return float((ours.double() - exact).norm() / exact.norm())


@attrs.define
class Measured:
    """Forwards of one subject. ``peak_mib`` is beside what was allocated before, 0 without CUDA; ``held_mib`` is what
    the session keeps between calls. ``failed`` is what torch said, if a forward did not fit or could not run.
    """

    sample: torch.Tensor | None = None
    times: list[float] = attrs.field(factory=list)
    peak_mib: float = 0.0
    held_mib: float = 0.0
    failed: str | None = None

    @property
    def ms(self) -> float:
        return statistics.median(self.times)


@attrs.frozen
class Compared:
    """What was measured of each subject, and what the report says of the exact stack."""

    subjects: Mapping[str, Measured]
    effective: Mapping[str, str]
    fallbacks: Sequence[Any]

    @property
    def identical(self) -> bool | None:
        """Whether the empty session gave the stock's bits; None where one of them did not run."""
        stock, session = self.subjects["stock"].sample, self.subjects["session"].sample
        return None if stock is None or session is None else torch.equal(stock, session)

    @property
    def difference(self) -> float | None:
        """Relative L2 difference of the exact stack's sample to stock's; None where one of them did not run."""
        stock, ours = self.subjects["stock"].sample, self.subjects["ours_exact"].sample
        return None if stock is None or ours is None else relative(ours, stock)

    @property
    def failed(self) -> dict[str, str]:
        """What torch said, by the subjects that did not run."""
        found = ((name, measured.failed) for name, measured in self.subjects.items())
        return {name: said for name, said in found if said}


def compare(
    host: Host,
    model: Any,
    arguments: Mapping[str, Any],
    request: Mapping[str, Any],
    repeat: int = 1,
    warm_up: bool = False,
) -> Compared:
    """Each subject in turns: ``repeat`` forwards that are counted, after one that is not with ``warm_up``."""
    device = arguments["hidden_states"].device.type
    found = {name: Measured() for name in ("stock", "session", "ours_exact")}
    with ExitStack() as stack:

        def session(asked: Mapping[str, Any]) -> Any:
            opened = stack.enter_context(host.session(model, asked))
            stack.enter_context(running(opened, arguments))
            return opened

        ours = session(request)
        models = {"stock": model, "session": session({}).model, "ours_exact": ours.model}
        for turn in range(repeat + warm_up):
            for name, measured in found.items():
                if turn == warm_up:
                    measured.times.clear()
                _forward(measured, models[name], arguments, device)
        found["ours_exact"].held_mib = ours.held_bytes() / 2**20
    claims = ours.report["effective"]
    for name, claim in claims.items():
        if claim["state"] != "effective":
            print(f"  {name} is {claim['state']}: {claim['evidence']}", flush=True)
    states = {name: claim["state"] for name, claim in claims.items()}
    return Compared(found, states, [dict(fallback) for fallback in ours.report["fallbacks"]])


def running(session: Any, arguments: Mapping[str, Any]) -> AbstractContextManager[Any]:
    """A run of the session, told how long the clip is: all these models have VAEs with four frames to a latent."""
    frames = arguments["hidden_states"].shape[2]
    run: AbstractContextManager[Any] = session.run(num_inference_steps=1, num_frames=4 * (frames - 1) + 1)
    return run


def _forward(measured: Measured, model: Any, arguments: Mapping[str, Any], device: str) -> None:
    """One forward, if those before it ran. What does not is noted, and its memory given back."""
    if measured.failed:
        return
    measured.sample = None
    kept: list[torch.Tensor] = []
    before = start_peak(device)
    try:
        measured.times.append(milliseconds_of(lambda: kept.append(model(**arguments)[0]), device))
    except RuntimeError as failure:  # that memory ran out is one
        measured.failed = said(failure)
    if measured.failed:  # here the error and its frames, which held the forward's tensors, are gone
        free()
        return
    measured.sample, measured.peak_mib = kept[0], peak_since(before, device)


def said(failure: RuntimeError) -> str:
    """The kind of a failure and the begin of its message; all of it is printed, unless memory ran out."""
    if not isinstance(failure, torch.OutOfMemoryError):
        traceback.print_exception(failure)
    return f"{type(failure).__name__}: {str(failure).partition(chr(10))[0][:300]}"


def start_peak(device: str) -> int:
    """Bytes that are allocated now, from which on `peak_since` looks."""
    if device != "cuda":
        return 0
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    return torch.cuda.memory_allocated()


def peak_since(before: int, device: str) -> float:
    """MiB at the peak beside what was allocated before; 0 without CUDA."""
    if device != "cuda":
        return 0.0
    torch.cuda.synchronize()  # what went wrong on the device is told here
    return (torch.cuda.max_memory_allocated() - before) / 2**20


def free() -> None:
    """Give the device back what nothing refers to any more."""
    if torch.cuda.is_available():
        gc.collect()
        torch.cuda.empty_cache()


def in_float64(model: Any, arguments: Mapping[str, Any]) -> torch.Tensor:
    """The stock forward of the same weights and arguments in float64. The stock code takes the rotation and the
    variance of norms in float32 whatever the dtype, so it is off by some 1e-7, where bfloat16 is off by 1e-2.
    """
    double = copy.deepcopy(model).double()
    wide = {
        name: value.double() if isinstance(value, torch.Tensor) and value.is_floating_point() else value
        for name, value in arguments.items()
    }
    sample: torch.Tensor = double(**wide)[0]
    assert sample.dtype == torch.float64
    return sample


def errors(
    host: Host, model: Any, arguments: Mapping[str, Any], request: Mapping[str, Any]
) -> tuple[float, float]:
    """Relative L2 errors of stock's sample and of ours against float64."""
    compared, exact = compare(host, model, arguments, request), in_float64(model, arguments)
    stock, ours = (compared.subjects[name].sample for name in ("stock", "ours_exact"))
    assert stock is not None and ours is not None, compared.failed
    return relative(stock, exact), relative(ours, exact)
