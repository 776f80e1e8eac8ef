"""The Wan model family: Wan 2.1 and 2.2 on the stock diffusers models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import ModelFamily


@hookimpl
def wf_model_family() -> ModelFamily:
    from wf_plugin_wan.family import WanFamily

    return WanFamily()
