"""EasyCache (arXiv 2507.02860): carry the last output along with the latent while both change at the same rate."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_plugin_cache_easycache.cache import EasyCache
    from wf_plugin_cache_easycache.rule import Settings

    return EasyCache(Settings(**options))
