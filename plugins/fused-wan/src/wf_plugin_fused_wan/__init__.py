"""Fused kernels, packed projections, and text keys and values computed once per run."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, Technique

_TECHNIQUES = {
    "fuse-qkv": ("packing", "PackedProjections"),
    "fused-rope": ("rope", "FusedRope"),
    "fused-modulation": ("modulation", "FusedModulation"),
    "fused-gelu": ("feed_forward", "FusedGelu"),
    "static-cross-kv": ("cross_kv", "StaticTextProducts"),
    "inplace-residual": ("inplace", "InplaceResidual"),
}
"""Feature -> module and class, whose arguments are the feature's options."""

_OF_A_FAMILY = ("fused-rope", "fused-modulation", "inplace-residual")
"""Those whose class is told the model's family as well: what they compute depends on it."""


@hookimpl
def wf_fusion(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    module, name = _TECHNIQUES[feature]
    of = {"family": facts.get("model.family")} if feature in _OF_A_FAMILY else {}
    technique: Technique = getattr(import_module(f"{__name__}.{module}"), name)(**options, **of)
    return technique
