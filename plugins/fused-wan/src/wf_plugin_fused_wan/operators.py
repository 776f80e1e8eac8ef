"""The kernels as custom operators: what compiled code calls in place of a technique's Python.

The implementation finds the technique of the session whose call is in progress, which judges and counts as in eager
mode. What it cannot serve is computed by the reference and counted as a fallback where the request allows that.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch

from wf_core.api import Ineligible, Technique, serving

if TYPE_CHECKING:
    from wf_plugin_fused_wan.dispatch import Dispatch
    from wf_plugin_fused_wan.modulation import FusedModulation
    from wf_plugin_fused_wan.rope import FusedRope


@torch.library.custom_op(
    "wf_fused_wan::norm_modulate", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,)
)
def norm_modulate(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    """As `norm_modulate.launch`."""
    technique = cast("FusedModulation", serving("fused-modulation"))
    args = (x, weight, bias, scale, shift, index, eps)
    out: torch.Tensor = _or_reference(technique, technique.norms, *args)
    return out


@norm_modulate.register_fake
def _(
    x: torch.Tensor,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    scale: torch.Tensor | None,
    shift: torch.Tensor | None,
    index: torch.Tensor | None,
    eps: float,
) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op(
    "wf_fused_wan::gated_residual", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,)
)
def gated_residual(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> torch.Tensor:
    """As `gated_residual.launch`."""
    technique = cast("FusedModulation", serving("fused-modulation"))
    result: torch.Tensor = _or_reference(technique, technique.residuals, x, out, gate, index)
    return result


@gated_residual.register_fake
def _(
    x: torch.Tensor, out: torch.Tensor, gate: torch.Tensor | None, index: torch.Tensor | None
) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.custom_op("wf_fused_wan::norm_rope", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,))
def norm_rope(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    query_eps: float,
    key_eps: float,
    heads: int,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As `norm_rope.launch`, with the tables as the model has them, ``[1, L, 1, D]`` or ``[L, D]``."""
    technique = cast("FusedRope", serving("fused-rope"))
    tables = None if cos is None or sin is None else (cos, sin)
    args = technique.arguments(query, key, query_weight, key_weight, (query_eps, key_eps), heads, tables)
    queries, keys = _or_reference(technique, technique.rotations, *args)
    return queries, keys


@norm_rope.register_fake
def _(
    query: torch.Tensor,
    key: torch.Tensor,
    query_weight: torch.Tensor | None,
    key_weight: torch.Tensor | None,
    query_eps: float,
    key_eps: float,
    heads: int,
    cos: torch.Tensor | None,
    sin: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    return _rows(query, heads), _rows(key, heads)


def _rows(x: torch.Tensor, heads: int) -> torch.Tensor:
    shape = (x.shape[0], x.shape[1], heads, x.shape[2] // heads)
    return torch.empty(shape, dtype=x.dtype, device=x.device)


def _or_reference(technique: Technique, dispatch: Dispatch, *args: Any) -> Any:
    """The host stands around handlers to do this; inside compiled code nobody does."""
    try:
        return _plain(dispatch(technique.counters, *args))
    except Ineligible as why:
        if not technique.dense_when_ineligible:
            raise
        technique.counters.fall_back(dispatch.kernel.seam, str(why))
        return _plain(dispatch.kernel.reference(*args))


def _plain(out: Any) -> Any:
    """Strides as the fakes promise: a reference may keep those of its input."""
    return tuple(x.contiguous() for x in out) if isinstance(out, tuple) else out.contiguous()
