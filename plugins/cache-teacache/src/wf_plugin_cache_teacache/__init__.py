"""TeaCache (arXiv 2411.19108): skip the blocks at steps whose signal has changed little since the last one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Calibrator, Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_lib_teacache.first_block import technique_for
    from wf_lib_teacache.settings import settle

    return technique_for(settle(options, facts))


@hookimpl
def wf_calibrator(feature: str, options: Mapping[str, Any], facts: Facts) -> Calibrator:
    from wf_plugin_cache_teacache.calibrate import TeaCacheCalibrator

    return TeaCacheCalibrator(options, facts)
