"""What the stock pipelines take for granted, and more than one module here must know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ROOT = "transformer"
"""The component name of the denoiser. Transfer2.5 has a control network beside it, which sessions share."""

PREDICT1, PREDICT2, PREDICT2_5, TRANSFER2_5 = "predict1", "predict2", "predict2.5", "transfer2.5"
GENERATIONS = {
    "CosmosTextToWorldPipeline": PREDICT1,
    "CosmosVideoToWorldPipeline": PREDICT1,
    "Cosmos2TextToImagePipeline": PREDICT2,
    "Cosmos2VideoToWorldPipeline": PREDICT2,
    "Cosmos2_5_PredictBasePipeline": PREDICT2_5,
    "Cosmos2_5_TransferPipeline": TRANSFER2_5,
}


def generation(pipe: Any) -> str:
    """Which generation's pipeline this is; empty for a pipeline of the user's own."""
    return next(
        (GENERATIONS[kind.__name__] for kind in type(pipe).__mro__ if kind.__name__ in GENERATIONS), ""
    )


def takes_video(arguments: Mapping[str, Any]) -> bool:
    """Whether the call has an image, a video or controls among its parameters, given or not."""
    return "image" in arguments or "controls" in arguments
