"""The Mosaic model family for wf."""

from __future__ import annotations

from wf_core.api import hookimpl


@hookimpl
def wf_model_family():
    from wf_plugin_mosaic.adapter import MosaicFamily

    return MosaicFamily()
