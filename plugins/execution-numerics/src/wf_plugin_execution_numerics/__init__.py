"""Numeric settings of a session, for the process or for the weights: the hook of this plugin, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, Technique


@hookimpl
def wf_execution_mode(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    from wf_plugin_execution_numerics.features import build

    return build(feature, options)
