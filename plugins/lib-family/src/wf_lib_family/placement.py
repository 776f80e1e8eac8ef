"""The ``placement`` seam: where the modules of a session live."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn

from wf_core.api import Wiring


def place(components: Mapping[str, Any], wiring: Wiring) -> None:
    """Tell the claims of ``placement`` about each component, once, when everything else is in place."""
    if not wiring.seams.claimed("placement"):
        return
    for name, module in components.items():
        if isinstance(module, nn.Module):
            wiring.wrap("placement", _stay, root=name)(name, module)


def _stay(name: str, module: nn.Module) -> None:
    """Stock placement: the weights stay where the base has them."""
