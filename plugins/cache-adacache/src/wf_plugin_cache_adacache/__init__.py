"""AdaCache (arXiv 2411.02397): reuse the stack's residual for as long as a block's self-attention stands still."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Calibrator, Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_plugin_cache_adacache.cache import AdaCache
    from wf_plugin_cache_adacache.settings import settle

    return AdaCache(settle(options, facts))


@hookimpl
def wf_calibrator(feature: str, options: Mapping[str, Any], facts: Facts) -> Calibrator:
    from wf_plugin_cache_adacache.calibrate import AdaCacheCalibrator

    return AdaCacheCalibrator(options, facts)
