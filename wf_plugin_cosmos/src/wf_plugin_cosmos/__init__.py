"""The Cosmos model family: Predict1, Predict2, Predict2.5 and Transfer2.5 on the stock diffusers models."""

from __future__ import annotations

from typing import TYPE_CHECKING

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import ModelFamily


@hookimpl
def wf_model_family() -> ModelFamily:
    from wf_plugin_cosmos.family import CosmosFamily

    return CosmosFamily()
