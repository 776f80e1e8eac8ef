"""``fused-modulation``: modulated norms and gated residuals by one kernel each, and the rows of tokens that share a
timestep made once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from wf_core.api import Handler, Ineligible, RunView, Site, Technique, TokenRows
from wf_plugin_fused_wan import gate, gated_residual, norm_modulate
from wf_plugin_fused_wan.arithmetic import alike, in_fp32
from wf_plugin_fused_wan.dispatch import Dispatch, Kernel
from wf_plugin_fused_wan.plain_layers import hooked
from wf_plugin_fused_wan.token_times import TokenTimes

Rows = torch.Tensor | TokenRows | None
LAYER_NORMS = ("LayerNorm", "FP32LayerNorm")
"""Classes, of torch and of diffusers, that compute a layer norm in fp32, whatever they are given."""


class FusedModulation(Technique):
    """Claims ``norm_modulate``, ``gated_residual`` and, of families that have it, ``time_embedding``."""

    def __init__(self, family: str = "wan") -> None:
        self.norms = Dispatch(_kernel("norm_modulate", norm_modulate, family))
        self.residuals = Dispatch(_kernel("gated_residual", gated_residual, family))
        self._times = TokenTimes()
        self._into: torch.Tensor | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {
            "norm_modulate": self.norm_modulate,
            "gated_residual": self.gated_residual,
            "time_embedding": self.time_embedding,
        }

    def prepare(self, components: Mapping[str, Any]) -> None:
        gate.require(components)

    def begin(self, run: RunView) -> None:
        self.norms.forget()
        self.residuals.forget()
        self._times = TokenTimes()

    def end(self) -> None:
        self.norms.forget()
        self.residuals.forget()
        self._times.end()

    def evidence(self) -> Mapping[str, object]:
        reasons = sorted({*self.norms.reasons(), *self.residuals.reasons()})
        return {"not_by_kernel": reasons} if reasons else {}

    def norm_modulate(
        self,
        inner: Callable[..., torch.Tensor],
        site: Site,
        norm: Any,
        x: torch.Tensor,
        scale: Rows,
        shift: Rows,
    ) -> torch.Tensor:
        """A norm that is none (Identity), or of another kind, is not this feature's."""
        if type(norm).__name__ not in LAYER_NORMS:
            return inner(norm, x, scale, shift)
        if scale is None or shift is None:
            scale = shift = index = None
        else:
            (scale, index), (shift, other) = _unpacked(scale), _unpacked(shift)
            if index is not other:
                raise Ineligible("scale and shift do not have the same rows for the same tokens")
        args = (x, norm.weight, norm.bias, scale, shift, index, norm.eps)
        if torch.compiler.is_compiling():
            from wf_plugin_fused_wan import operators

            traced: torch.Tensor = operators.norm_modulate(*args)
            return traced
        if hooked(norm):
            raise Ineligible("the norm carries hooks, which the kernel would not call")
        out: torch.Tensor = self.norms(self.counters, *args)
        return out

    def gated_residual(
        self, inner: Callable[..., torch.Tensor], site: Site, x: torch.Tensor, out: torch.Tensor, gate: Rows
    ) -> torch.Tensor:
        """Every residual is this feature's, with a gate or without one."""
        rows, index = (None, None) if gate is None else _unpacked(gate)
        if torch.compiler.is_compiling():
            from wf_plugin_fused_wan import operators

            traced: torch.Tensor = operators.gated_residual(x, out, rows, index)
            return traced
        inplace = self._into is x and x.is_contiguous()
        result: torch.Tensor = self.residuals(self.counters, x, out, rows, index, inplace)
        return result

    @contextmanager
    def writing_into(self, x: torch.Tensor | None) -> Iterator[None]:
        """Meanwhile a residual that is added to ``x`` is written over it: for `InplaceResidual`, which knows whose x
        is. None is no tensor at all.
        """
        self._into = x
        try:
            yield
        finally:
            self._into = None

    def time_embedding(
        self, inner: Callable[[torch.Tensor], tuple[Any, Any]], site: Site, timestep: torch.Tensor
    ) -> tuple[Any, Any]:
        """``[B, L]`` of tokens -> the embeddings of the distinct timesteps, and who has which; ``[B, T]`` of frames ->
        one of each frame, whatever the timesteps are: frames are few. ``[B]`` is left alone.
        """
        if timestep.ndim != 2 or torch.compiler.is_compiling():
            return inner(timestep)
        if site.role == "frame":
            frames = torch.arange(timestep.shape[1], device=timestep.device)
            return self._shared(inner, timestep, frames.expand(timestep.shape))
        if timestep.is_cuda and torch.cuda.is_current_stream_capturing():
            return self._each(inner, timestep, "a CUDA graph is being captured, and the host may not look")
        reduced = self._times.reduce(timestep)
        if reduced is None:
            return self._each(inner, timestep, "the tokens of a row have more than two timesteps")
        return self._shared(inner, *reduced)

    def _shared(
        self, inner: Callable[..., tuple[Any, Any]], timestep: torch.Tensor, index: torch.Tensor
    ) -> tuple[TokenRows, TokenRows]:
        temb, projection = inner(timestep)
        self.counters.add("deduplicated_calls")
        return TokenRows(temb, index), TokenRows(projection, index)

    def _each(
        self, inner: Callable[..., tuple[Any, Any]], timestep: torch.Tensor, why: str
    ) -> tuple[Any, Any]:
        self.counters.fall_back("time_embedding", why)
        return inner(timestep)


def _kernel(name: str, module: Any, family: str) -> Kernel:
    ineligible = module.ineligible if in_fp32(family) else alike(module.ineligible)
    return Kernel(name, name, module.reference, module.plan, ineligible)


def _unpacked(rows: torch.Tensor | TokenRows) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Values and index; one row that all tokens share needs no index."""
    if not isinstance(rows, TokenRows):
        return rows, None
    return rows.values, None if rows.values.shape[1] == 1 else rows.index
