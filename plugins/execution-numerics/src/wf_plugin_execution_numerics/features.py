"""From a feature's name and options to its technique."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from wf_core.api import Technique
from wf_plugin_execution_numerics.attention import AttentionPolicy
from wf_plugin_execution_numerics.casting import WeightDtype
from wf_plugin_execution_numerics.settings import Deterministic, MatmulPrecision, Tf32


def build(feature: str, options: Mapping[str, Any]) -> Technique:
    """The technique of one feature."""
    if feature == "attention-policy":
        return AttentionPolicy(options["policy"])
    if feature == "tf32":
        return Tf32(options["enabled"])
    if feature == "matmul-precision":
        return MatmulPrecision(options["precision"])
    if feature == "deterministic":
        return Deterministic(options["enabled"])
    return WeightDtype(getattr(torch, options["dtype"]))
