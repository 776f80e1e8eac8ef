"""How one kernel serves the calls of one run: judged once per signature, counted at each call."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum, auto
from typing import Any

import torch
from attrs import frozen

from wf_core.api import FeatureCounters, Ineligible
from wf_plugin_fused_wan import gate


@frozen
class Kernel:
    """A computation in two forms: ``reference(*args)``, and ``plan(*args)``, which gives what is called with these and
    with other arguments of their signature. ``ineligible(*args)`` says why the second cannot be, or "".
    """

    name: str
    seam: str
    reference: Callable[..., Any]
    plan: Callable[..., Any]
    ineligible: Callable[..., str]


class How(Enum):
    """What is done with the calls of one signature."""

    KERNEL = auto()
    REFERENCE = auto()
    INELIGIBLE = auto()
    QUARANTINED = auto()


@frozen
class Verdict:
    """How, and why not by the kernel."""

    how: How
    why: str = ""


class Dispatch:
    """Calls of one kernel. A signature is what eligibility depends on: dtypes, shapes, strides, devices, numbers."""

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._verdicts: dict[tuple[Any, ...], Verdict] = {}
        self._plans: dict[tuple[Any, ...], Callable[..., Any]] = {}

    def forget(self) -> None:
        """A run begins or has ended: a kernel that failed in one is tried again in the next."""
        self._verdicts.clear()
        self._plans.clear()

    def reasons(self) -> list[str]:
        """Why calls of this run were not served by the kernel."""
        return sorted({verdict.why for verdict in self._verdicts.values() if verdict.why})

    def __call__(self, counters: FeatureCounters, *args: Any) -> Any:
        """By the kernel, or by the reference where there is no Triton, or where the kernel failed.

        Raises ``Ineligible`` for what the kernel cannot serve; out-of-memory comes through.
        """
        key = _signature(args)
        verdict = self._verdicts.get(key)
        if verdict is None:
            verdict = self._verdicts[key] = self._judge(args)
        if verdict.how is How.KERNEL:
            return self._by_kernel(counters, key, args)
        if verdict.how is How.INELIGIBLE:
            raise Ineligible(verdict.why)
        if verdict.how is How.QUARANTINED:
            counters.fall_back(self.kernel.seam, verdict.why)
        else:
            counters.add("reference_calls")
        return self.kernel.reference(*args)

    def _by_kernel(self, counters: FeatureCounters, key: tuple[Any, ...], args: tuple[Any, ...]) -> Any:
        try:
            run = self._plans.get(key)
            if run is None:
                run = self._plans[key] = self.kernel.plan(*args)
            out = run(*args)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            why = f"the kernel {self.kernel.name} failed: {type(error).__name__}: {_one_line(error)}"
            self._verdicts[key] = Verdict(How.QUARANTINED, why)
            counters.fall_back(self.kernel.seam, why)
            return self.kernel.reference(*args)
        counters.add("calls")
        counters.add(f"{self.kernel.name}_calls")
        return out

    def _judge(self, args: tuple[Any, ...]) -> Verdict:
        reason = self.kernel.ineligible(*args)
        if reason:
            return Verdict(How.INELIGIBLE, reason)
        reason = gate.why_not(args[0].device)
        return Verdict(How.REFERENCE, reason) if reason else Verdict(How.KERNEL)


def _signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    recording = torch.is_grad_enabled()
    parts = [
        (x.dtype, x.shape, x.stride(), x.device, recording and x.requires_grad)
        if isinstance(x, torch.Tensor)
        else x
        for x in args
    ]
    return tuple(parts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
