"""xformers' attention as a backend: the hook of this plugin, and nothing else."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import AttentionProvider, Facts


@hookimpl
def wf_attention_provider(feature: str, options: Mapping[str, Any], facts: Facts) -> AttentionProvider:
    from wf_plugin_attention_xformers.provider import Xformers

    return Xformers.for_model(facts)
