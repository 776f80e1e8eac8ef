"""MagCache (arXiv 2506.09045): skip the blocks while measured ratios say that their residual has hardly changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Calibrator, Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_plugin_cache_magcache.cache import MagCache
    from wf_plugin_cache_magcache.settings import settle

    return MagCache(settle(options, facts))


@hookimpl
def wf_calibrator(feature: str, options: Mapping[str, Any], facts: Facts) -> Calibrator:
    from wf_plugin_cache_magcache.calibrate import MagCacheCalibrator

    return MagCacheCalibrator(facts)
