"""The one intermediate form of a model: each component's class, config and weights, from memory or from disk."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs


def is_denoiser(component: str) -> bool:
    """Whether a component of that name is a denoiser in the pipelines of diffusers."""
    return "transformer" in component or "unet" in component


@attrs.frozen
class WeightSummary:
    """What is known of a component's tensors without reading them.

    ``device`` is the type of the device on which the first one lies, "" on disk; ``training``: the component is in
    train mode and some tensor of it takes gradients.
    """

    bytes: int
    dtype: str
    modules: tuple[str, ...]
    device: str = ""
    training: bool = False

    @classmethod
    def of(
        cls, tensors: Mapping[str, tuple[str, int]], device: str = "", training: bool = False
    ) -> WeightSummary:
        """From tensor name -> (dtype, bytes). The dtype is the one that holds most bytes."""
        by_dtype: dict[str, int] = {}
        for dtype, size in tensors.values():
            by_dtype[dtype] = by_dtype.get(dtype, 0) + size
        dtype = max(sorted(by_dtype), key=lambda name: by_dtype[name], default="")
        parts = {part for name in tensors for part in name.split(".")[:-1] if not part.isdigit()}
        return cls(sum(by_dtype.values()), dtype, tuple(sorted(parts)), device, training)


@attrs.frozen
class ComponentConfig:
    """One component: its class name, its config (a mapping, or an object with attributes), its weights."""

    class_name: str
    config: Any = attrs.field(factory=dict, repr=False)
    weights: WeightSummary | None = None
    source: str = ""

    def has(self, key: str) -> bool:
        """Whether the config says anything about ``key``."""
        return key in self.config if isinstance(self.config, Mapping) else hasattr(self.config, key)

    def get(self, key: str) -> Any:
        """The config's value."""
        if isinstance(self.config, Mapping):
            return self.config.get(key)
        return getattr(self.config, key, None)


@attrs.frozen
class ComponentConfigs:
    """A pipeline (or a bare transformer): components by name, in the pipeline's own order, without empty ones.

    ``source_name`` is the path or id that the model was loaded from, ``hooked`` what already runs around it.
    """

    pipeline_class: str
    pipeline_config: Mapping[str, Any]
    components: Mapping[str, ComponentConfig]
    source_name: str = ""
    source: str = ""
    hooked: str = ""
