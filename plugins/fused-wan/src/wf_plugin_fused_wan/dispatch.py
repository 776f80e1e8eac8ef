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
    """Calls of one kernel. A signature is what eligibility depends on: dtypes, shapes, strides, devices, numbers.

    A forward of 30 blocks comes here some 240 times: a signature that a plan is known for is looked up once.
    """

    def __init__(self, kernel: Kernel) -> None:
        self.kernel = kernel
        self._counted = f"{kernel.name}_calls"
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
        key = signature(args)
        run = self._plans.get(key)
        if run is None:
            verdict = self._verdict(key, args)
            if verdict.how is not How.KERNEL:
                return self._without(counters, verdict, args)
        try:
            if run is None:
                run = self._plans[key] = self.kernel.plan(*args)
            out = run(*args)
        except (torch.OutOfMemoryError, MemoryError):
            raise
        except Exception as error:
            return self._without(counters, self._quarantine(key, error), args)
        counters.add("calls")
        counters.add(self._counted)
        return out

    def _without(self, counters: FeatureCounters, verdict: Verdict, args: tuple[Any, ...]) -> Any:
        if verdict.how is How.INELIGIBLE:
            raise Ineligible(verdict.why)
        if verdict.how is How.QUARANTINED:
            counters.fall_back(self.kernel.seam, verdict.why)
        else:
            counters.add("reference_calls")
        return self.kernel.reference(*args)

    def _verdict(self, key: tuple[Any, ...], args: tuple[Any, ...]) -> Verdict:
        found = self._verdicts.get(key)
        if found is None:
            found = self._verdicts[key] = self._judge(args)
        return found

    def _judge(self, args: tuple[Any, ...]) -> Verdict:
        reason = self.kernel.ineligible(*args)
        if reason:
            return Verdict(How.INELIGIBLE, reason)
        reason = gate.why_not(args[0].device)
        return Verdict(How.REFERENCE, reason) if reason else Verdict(How.KERNEL)

    def _quarantine(self, key: tuple[Any, ...], error: Exception) -> Verdict:
        self._plans.pop(key, None)
        why = f"the kernel {self.kernel.name} failed: {type(error).__name__}: {_one_line(error)}"
        verdict = self._verdicts[key] = Verdict(How.QUARANTINED, why)
        return verdict


def signature(args: tuple[Any, ...]) -> tuple[Any, ...]:
    """Flat, as that is the quickest to make and to look up; with gradients recorded, who wants one as well."""
    parts: list[Any] = []
    for x in args:
        if isinstance(x, torch.Tensor):
            parts += (x.dtype, x.shape, x.stride(), x.device)
        else:
            parts.append(x)
    if torch.is_grad_enabled():
        parts += (isinstance(x, torch.Tensor) and x.requires_grad for x in args)
    return tuple(parts)


def _one_line(error: Exception) -> str:
    return " ".join(str(error).split())[:300]
