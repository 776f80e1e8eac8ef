"""Whether Triton works on a device: asked once per process and device, in the end by a kernel of one row."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Any

import torch

from wf_core.api import Ineligible

OLDEST = (8, 0)
"""The compute capability from which bfloat16 is computed by the device itself."""

_WORKS: set[torch.device] = set()
"""Where a kernel has run: that does not change while a process lives. What failed may be mended, and is tried again."""


def why_not(device: torch.device) -> str:
    """Why no Triton kernel can run on ``device``; "" when one ran there and was right.

    The first call for a device compiles a kernel and waits for its result. Raises ``torch.OutOfMemoryError``.
    """
    if device in _WORKS:
        return ""
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        return "a CUDA graph is being captured, and Triton has not been tried on this device before"
    found = _examine(device)
    if not found:
        _WORKS.add(device)
    return found


def require(components: Mapping[str, Any]) -> None:
    """Raises ``Ineligible`` when a component is on a CUDA device on which no kernel can run."""
    modules = [module for module in components.values() if isinstance(module, torch.nn.Module)]
    for device in {p.device for module in modules for p in module.parameters() if p.is_cuda}:
        if reason := why_not(device):
            raise Ineligible(reason)


def interpreting() -> bool:
    """Whether Triton was imported with its interpreter on: its kernels then run on tensors of the CPU, for tests."""
    import triton

    return bool(triton.knobs.runtime.interpret)


def _examine(device: torch.device) -> str:
    if importlib.util.find_spec("triton") is None:
        return "the package triton is not installed"
    if device.type == "cuda":
        if torch.version.cuda is None:
            return "the kernels are written for CUDA, and this torch is built for another platform"
        if torch.cuda.get_device_capability(device) < OLDEST:
            major, minor = torch.cuda.get_device_capability(device)
            return f"the kernels need compute capability 8.0 (sm80), and this device has {major}.{minor}"
    elif not interpreting():
        return f"Triton kernels run on CUDA devices, and this call is on {device.type}"
    return _smoke(device)


def _smoke(device: torch.device) -> str:
    """Compile, run, compare. A missing C compiler shows up here, as Triton builds the launcher with it."""
    from wf_plugin_fused_wan.gated_residual import launch, reference

    row = torch.arange(32, dtype=torch.float32, device=device).view(1, 1, 32)
    try:
        found = launch(row, row, row, None)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return (
            f"Triton cannot run a kernel here: {type(error).__name__}: {' '.join(str(error).split())[:300]}"
        )
    right = torch.equal(found, reference(row, row, row, None))
    return "" if right else "a Triton kernel computed a wrong sum here"
