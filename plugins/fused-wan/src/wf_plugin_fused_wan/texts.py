"""The texts of a run, and what was computed from each: the entries of ``static-cross-kv``.

The context that reaches the blocks is a new tensor at every step, although its values are those of the step before.
What stays the same object is the embedding that the caller passes: an entry holds it, so that no other tensor can take
its identity, and remembers its version, so that a write into it is seen.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import torch

from wf_core.api import geometry

TEXT, IMAGE = "encoder_hidden_states", "encoder_hidden_states_image"
HARMLESS = frozenset(
    {
        "attention_mask",
        "block_controlnet_hidden_states",
        "condition_mask",
        "control_hidden_states",
        "control_hidden_states_scale",
        "fps",
        "hidden_states",
        "padding_mask",
        "timestep",
    }
)
"""Arguments of a transformer call that do not reach the keys and values of the text."""
SETTINGS = "attention_kwargs"
"""Passed on to the layers (the scale of a LoRA): part of what an entry is known by."""
INFERENCE = "the text was made in inference mode, where a write into it cannot be seen: use torch.no_grad()"

Kept = tuple[Hashable, torch.Tensor, int, Any]


class Text:
    """One text (and image) at one root, and the products ``[B, S, D]`` that were computed from it, by layer."""

    def __init__(self, root: str, sources: tuple[torch.Tensor, ...], settings: Hashable) -> None:
        self.root = root
        self.settings = settings
        self._sources = tuple((source, source._version, geometry(source)) for source in sources)
        self._kept: dict[Hashable, Kept] = {}

    def is_of(self, root: str, sources: tuple[torch.Tensor, ...], settings: Hashable) -> bool:
        """Whether a call's text is this one, object for object, written to or not."""
        return (
            root == self.root
            and settings == self.settings
            and len(sources) == len(self._sources)
            and all(kept[0] is source for kept, source in zip(self._sources, sources, strict=True))
        )

    def unchanged(self) -> bool:
        """Whether nobody has written to it, or made it another tensor, since the entry was made."""
        return all(source._version == v and geometry(source) == g for source, v, g in self._sources)

    def find(self, layer: Hashable, x: torch.Tensor) -> torch.Tensor | None:
        """What the layer has computed from this text; None if nothing, from another x, or if that was written to."""
        kept = self._kept.get(layer)
        if kept is None or kept[0] != geometry(x) or kept[2] != version(kept[1]):
            return None
        return kept[1]

    def keep(self, layer: Hashable, x: torch.Tensor, out: torch.Tensor, alive: Any = None) -> None:
        """``alive`` is whatever the name of the layer is the identity of."""
        self._kept[layer] = (geometry(x), out, version(out), alive)

    def products(self) -> Iterator[torch.Tensor]:
        """The tensors computed from this text."""
        return (kept[1] for kept in self._kept.values())

    def held(self) -> Iterator[torch.Tensor]:
        """All tensors kept alive by the entry."""
        yield from (source for source, _, _ in self._sources)
        yield from self.products()


def read_call(arguments: Mapping[str, Any]) -> tuple[tuple[torch.Tensor, ...], Hashable, str]:
    """The tensors and settings that the text's keys and values follow from, and why they cannot be told ("" if they
    can). Text and image tokens come as two arguments (Wan), or as a pair in one (Cosmos).
    """
    nothing: tuple[torch.Tensor, ...] = ()
    known = HARMLESS | {TEXT, IMAGE, SETTINGS}
    unknown = sorted(name for name, value in arguments.items() if name not in known and value is not None)
    if unknown:
        return (
            nothing,
            None,
            f"the call has {', '.join(unknown)}, of which it is not known what the text makes of it",
        )
    settings = tuple(sorted(dict(arguments.get(SETTINGS) or {}).items()))
    if not all(isinstance(value, bool | int | float | str) for _, value in settings):
        return nothing, None, f"the call's {SETTINGS} hold more than numbers and words"
    text = arguments.get(TEXT)
    pair = text if isinstance(text, tuple) else (text,)
    sources = tuple(source for source in (*pair, arguments.get(IMAGE)) if source is not None)
    if not pair or pair[0] is None or not all(type(source) is torch.Tensor for source in sources):
        return nothing, None, "the text is not a plain tensor"
    if any(source.is_inference() for source in sources):
        return nothing, None, INFERENCE
    return sources, settings, ""


def version(tensor: torch.Tensor) -> int:
    """The number of writes to a tensor; one that does not count them says always the same."""
    return -1 if tensor.is_inference() else tensor._version
