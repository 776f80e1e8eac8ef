"""Whether a run records gradients, which some techniques must not be used with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from wf_core.sessions.opening import Opened


def grad_fact(opened: Opened, pipe: Any = None) -> dict[str, Any]:
    """``run.grad_enabled``: whether a transformer call of this run records gradients.

    Pipelines run under ``torch.no_grad`` by a decorator of their class's call, so that the caller's own grad mode says
    nothing about them.
    """
    calls = [vars(kind).get("__call__") for kind in type(pipe).__mro__]
    off = any(getattr(getattr(call, "__code__", None), "co_name", "") == "decorate_context" for call in calls)
    roots = opened.family.roots(opened.components).values()
    trained = any(parameter.requires_grad for root in roots for parameter in root.parameters())
    return {"run.grad_enabled": not off and trained and torch.is_grad_enabled()}
