"""Whether a run records gradients, which some techniques must not be used with."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from wf_core.sessions.opening import Opened


def grad_fact(opened: Opened, call: Callable[..., Any] | None = None) -> dict[str, Any]:
    """``run.grad_enabled``: whether a transformer call of this run records gradients.

    Pipelines run under ``torch.no_grad`` by a decorator, so that the caller's own grad mode says nothing about them.
    """
    function = getattr(call, "func", call)
    off = getattr(getattr(function, "__code__", None), "co_name", "") == "decorate_context"
    roots = opened.family.roots(opened.components).values()
    trained = any(parameter.requires_grad for root in roots for parameter in root.parameters())
    return {"run.grad_enabled": not off and trained and torch.is_grad_enabled()}
