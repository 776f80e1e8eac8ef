"""Caches that run some blocks of a transformer at every step to see whether the others are needed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_plugin_cache_blocks.dynamic import DynamicBlockCache
    from wf_plugin_cache_blocks.probe import ProbeCache
    from wf_plugin_cache_blocks.settings import Settings

    settings = Settings.of(feature, options)
    return DynamicBlockCache(settings) if feature == "dynamicblock" else ProbeCache(settings)
