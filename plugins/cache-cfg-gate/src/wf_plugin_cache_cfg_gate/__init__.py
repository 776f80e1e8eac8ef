"""Reuse of the guidance difference: from a share of the steps on the unconditional branch is not run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_plugin_cache_cfg_gate.cache import CfgGate

    return CfgGate(options["step"])
