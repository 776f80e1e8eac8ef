"""What a foreign kernel can serve, as data, and the judgement of one call by it: metadata only, no tensor is read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_lib_attention.packages import release

HALF = (torch.float16, torch.bfloat16)


@dataclass(frozen=True)
class Limits:
    """The limits of one kernel. Every rule comes with the words for it.

    ``name`` begins each reason. ``least`` is the first release of the package that will do; a package without a known
    version is not judged by it. ``arch`` says whether there are kernels for a compute capability, ``head`` whether for
    a head size on it. ``captured`` says that a CUDA graph may record the kernel, ``least_tokens`` that attention over
    fewer tokens, on either side, is left to others.
    """

    name: str
    arch: Callable[[tuple[int, int]], bool]
    arch_words: str
    head: Callable[[int, tuple[int, int]], bool] = lambda size, capability: True
    head_words: str = ""
    dtypes: tuple[torch.dtype, ...] = HALF
    least: str = ""
    masks: bool = False
    captured: bool = True
    least_tokens: int = 0

    def why_not(self, call: Call, machine: Machine, version: str = "") -> str:
        """Why the kernel of package ``version`` cannot serve a call on this machine, as one sentence, or "".

        The first rule that is broken speaks: package, device, architecture, shapes, dtype, head size, mask, gradient,
        capture, length.
        """
        return (
            self._package(version)
            or self._device(call, machine)
            or call.problem()
            or self._dtype(call)
            or self._head(call, machine)
            or self._mask(call)
            or self._mode(call)
            or self._length(call)
        )

    def _package(self, version: str) -> str:
        if version and self.least and release(version) < release(self.least):
            return f"{self.name} needs its package in version {self.least} or later, this is {version}"
        return ""

    def _device(self, call: Call, machine: Machine) -> str:
        if not machine.is_cuda:
            return f"{self.name} runs on CUDA devices only, this call is on {call.device.type}"
        if not self.arch(machine.capability):
            return (
                f"{self.name} needs compute capability {self.arch_words}, this device has {machine.version}"
            )
        return ""

    def _dtype(self, call: Call) -> str:
        if call.dtype in self.dtypes:
            return ""
        names = " and ".join(_name(dtype) for dtype in self.dtypes)
        return f"{self.name} takes {names}, this call is {_name(call.dtype)}"

    def _head(self, call: Call, machine: Machine) -> str:
        if self.head(call.head_dim, machine.capability):
            return ""
        return f"{self.name} takes head sizes of {self.head_words}, this call has {call.head_dim}"

    def _mask(self, call: Call) -> str:
        return "" if self.masks or call.mask is None else f"{self.name} takes no mask"

    def _mode(self, call: Call) -> str:
        if call.grad:
            return f"{self.name} is offered without a gradient; use torch.no_grad()"
        if call.capturing and not self.captured:
            return (
                f"{self.name} may not be recorded into a CUDA graph: replayed, it is reported to return noise"
            )
        return ""

    def _length(self, call: Call) -> str:
        shortest = min(call.lengths)
        if shortest >= self.least_tokens:
            return ""
        return f"{self.name} is kept to {self.least_tokens} tokens and more, this call has {shortest}"


def _name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
