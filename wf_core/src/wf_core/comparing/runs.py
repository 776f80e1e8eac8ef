"""One run of a pipeline on a batch of prompts, timed from call to clip: the plain one, and the one in a session."""

from __future__ import annotations

import inspect
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import attrs
import torch

from wf_core.errors import Refused
from wf_core.sessions.memory import peak_bytes, reset_peak

if TYPE_CHECKING:
    import numpy as np

    from wf_core.comparing.batches import Batch
    from wf_core.host import Host
    from wf_core.resolving.plan import Plan

WARM_UP_STEPS = 3
"""Solver steps of the untimed run before a timed one: enough for a cache to compute, skip and compute."""


@attrs.frozen(eq=False)
class Output:
    """What one run gave.

    ``clips`` ``[B, F, H, W, 3]`` float32 in [0, 1]; ``latents`` ``[B, ...]`` before decoding, on the CPU, None where
    the pipeline does not show them; ``seconds`` of wall time; ``peak_bytes`` of device memory, None on a device
    without a count; ``forwards`` the transformer forwards that were computed, with all branches.
    """

    clips: np.ndarray[Any, Any]
    latents: torch.Tensor | None
    seconds: float
    peak_bytes: int | None
    forwards: float
    report: Mapping[str, Any] | None = None


@attrs.frozen(eq=False)
class Bench:
    """A loaded pipeline with the arguments of its calls, which all runs share."""

    host: Host
    pipe: Any
    call: Mapping[str, Any]

    def plain(self, batch: Batch, *, warm: bool) -> Output:
        """The stock pipeline's own run: no session, nothing installed. ``warm`` leaves out the run before it."""
        if not warm:
            self._warm_up(self.pipe, batch)
        with counting(self._roots()) as forwards:
            output = self._run(self.pipe, batch)
        return attrs.evolve(output, forwards=float(sum(forwards)))

    def accelerated(self, plan: Plan, batch: Batch) -> Output:
        """The run in a session of its own, so that what the session sets in the process never meets a plain run."""
        with self.host.session(self.pipe, plan) as session:
            self._warm_up(session.pipe, batch)
            output = self._run(session.pipe, batch)
        report = session.report
        return attrs.evolve(output, forwards=float(report["steps"]["forwards"]["computed"]), report=report)

    def _roots(self) -> tuple[torch.nn.Module, ...]:
        """The transformers of the pipeline."""
        family = self.host.family(str(self.host.facts(self.pipe).get("model.family")))
        return tuple(family.roots(dict(self.pipe.components)).values())

    def _warm_up(self, pipe: Any, batch: Batch) -> None:
        """A short run; as long as the real one where a feature refuses a schedule so short."""
        steps = self.call.get("num_inference_steps")
        short = WARM_UP_STEPS if steps is None else min(WARM_UP_STEPS, int(steps))
        try:
            self._call(pipe, batch, num_inference_steps=short)
        except Refused:
            self._call(pipe, batch)

    def _run(self, pipe: Any, batch: Batch) -> Output:
        seen: list[torch.Tensor] = []

        def keep(_pipe: Any, _index: int, _timestep: Any, tensors: Mapping[str, Any]) -> dict[str, Any]:
            seen[:] = [tensors["latents"]]
            return {}

        shown = {"callback_on_step_end": keep} if shows_latents(pipe) else {}
        synchronise(self.pipe)
        reset_peak()
        started = time.perf_counter()
        clips = self._call(pipe, batch, **shown)
        synchronise(self.pipe)
        seconds = time.perf_counter() - started
        latents = seen[0].detach().float().cpu() if seen else None
        return Output(clips, latents, seconds, peak_bytes().get("peak_bytes"), forwards=0.0)

    def _call(self, pipe: Any, batch: Batch, **more: Any) -> np.ndarray[Any, Any]:
        generators = [
            torch.Generator("cpu").manual_seed(batch.seed + number) for number in range(len(batch.prompts))
        ]
        prompts = list(batch.prompts)
        arguments = {**self.call, "prompt": prompts, "generator": generators, "output_type": "np", **more}
        clips: np.ndarray[Any, Any] = pipe(**arguments).frames
        return clips


def shows_latents(pipe: Any) -> bool:
    """Whether the pipeline calls back at the end of each step with its latents."""
    return "callback_on_step_end" in inspect.signature(type(pipe).__call__).parameters


def synchronise(pipe: Any) -> None:
    """Wait for the accelerator where the pipeline is on one."""
    if torch.device(pipe.device).type != "cpu":
        torch.accelerator.synchronize()


@contextmanager
def counting(roots: Sequence[torch.nn.Module]) -> Iterator[list[int]]:
    """One entry for each forward of these modules. The hooks that count are gone afterwards."""
    seen: list[int] = []
    handles = [root.register_forward_pre_hook(lambda *_: seen.append(1)) for root in roots]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
