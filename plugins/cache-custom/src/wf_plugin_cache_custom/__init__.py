"""TeaCache's decision with the stack's residual continued along its line, as LightX2V's cache of this name does."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    from wf_lib_teacache.first_block import technique_for
    from wf_lib_teacache.settings import settle

    return technique_for(settle(options, facts), order=int(options["order"]))
