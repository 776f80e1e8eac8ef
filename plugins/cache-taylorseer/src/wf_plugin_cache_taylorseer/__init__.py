"""TaylorSeer (arXiv 2503.06923): compute every few steps and extrapolate in between, the stack or each block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import Facts, FeatureCache


@hookimpl
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    common = {name: options[name] for name in ("order", "first", "last")}
    if feature == "blocktaylorseer":
        from wf_plugin_cache_taylorseer.blocks import BlockTaylorSeer

        return BlockTaylorSeer(tuple(options["pattern"]), **common)
    from wf_plugin_cache_taylorseer.stack import TaylorSeer

    return TaylorSeer(options["interval"], start=options["start"], **common)
