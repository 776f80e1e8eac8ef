"""``static-cross-kv``: the projections of the text in the cross-attentions are computed once per text and run.

The ``denoiser`` handler tells which text a call is about (see `texts`), the ``linear`` handler gives back what a layer
has made of that text before. What is kept is 2 * S * D values per block and text, and as many of the image tokens; what
is saved is a small part of a video model's arithmetic, which the evidence shows: at 14B 4 * S * D^2 of 23 * D^2 * L,
the work of attention itself not counted.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from functools import partial
from types import MethodType
from typing import Any, cast

import torch
from torch import nn
from torch.nn.functional import linear

from wf_core.api import Handler, RunView, Site, Technique, serving
from wf_plugin_fused_wan.texts import Text, read_call

FEATURE = "static-cross-kv"
OF_TEXT = ("attn2.to_k", "attn2.to_v")
OF_IMAGE = ("attn2.add_k_proj", "attn2.add_v_proj", "attn2.k_img", "attn2.v_img")
"""What Wan and what Cosmos call the projections of the image tokens."""
ROLES = (*OF_TEXT, *OF_IMAGE)
MOST_TEXTS = 4
"""Two branches of two experts."""
GRADIENTS = "gradients are recorded, and products of another step would not pass them on"


@torch.library.custom_op("wf_fused_wan::text_product", mutates_args=(), tags=(torch._C.Tag.cudagraph_unsafe,))
def text_product(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """x ``[B, S, D_in]`` -> ``[B, S, D]``, computed or kept.

    A copy of what is kept: the compiler may use the memory of a result again once it has read it.
    """
    technique = cast("StaticTextProducts", serving(FEATURE))
    return technique.product(id(weight), x, partial(linear, weight=weight, bias=bias), weight).clone()


@text_product.register_fake
def _(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return x.new_empty(*x.shape[:-1], weight.shape[0])


class StaticTextProducts(Technique):
    """Counts ``misses`` (products computed and kept: layers times texts), ``hits`` (given back) and ``bypasses``
    (products of calls that it could not take, computed and not kept).
    """

    def __init__(self) -> None:
        self._texts: list[Text] = []
        self._now: Text | None = None
        self._run: RunView | None = None
        self._weights: dict[str, int] = {}
        self._shown = _Shown()

    def handlers(self) -> Mapping[str, Handler]:
        return {"denoiser": self._call, "linear": self._linear}

    def roles(self) -> Mapping[str, Collection[str]]:
        return {"linear": ROLES}

    def prepare(self, components: Mapping[str, Any]) -> None:
        self._weights = {
            root: _weights_per_token(component)
            for root, component in components.items()
            if isinstance(component, nn.Module)
        }

    def begin(self, run: RunView) -> None:
        self._forget()
        self._run = run
        self._shown = _Shown()

    def end(self) -> None:
        self._forget()
        self._run = None

    def close(self) -> None:
        self.end()

    def held_tensors(self) -> Iterable[torch.Tensor]:
        return [tensor for text in self._texts for tensor in text.held()]

    def evidence(self) -> Mapping[str, object]:
        return self._shown.values()

    def product(
        self, layer: Hashable, x: torch.Tensor, compute: Callable[[torch.Tensor], torch.Tensor], alive: Any
    ) -> torch.Tensor:
        """What ``layer`` makes of x ``[B, S, D_in]``: kept from an earlier call with this text, or computed now."""
        text = self._now
        if text is None:
            self.counters.add("bypasses")
            return compute(x)
        kept = text.find(layer, x)
        if kept is not None:
            self.counters.add("hits")
            self._shown.saved += 2 * x.numel() * kept.shape[-1]
            return kept
        self.counters.add("misses")
        out = compute(x)
        self._shown.arithmetic += 2 * x.numel() * out.shape[-1]
        text.keep(layer, x, out, alive)
        return out

    def _linear(self, inner: Callable[..., torch.Tensor], site: Site, x: torch.Tensor) -> torch.Tensor:
        if torch.compiler.is_compiling():
            # getattr with a default finds no __self__ in code that torch 2.11 traces
            layer = inner.__self__ if isinstance(inner, MethodType) else None
            if not isinstance(layer, nn.Linear):
                return inner(x)  # another feature computes this layer
            out: torch.Tensor = text_product(x, layer.weight, layer.bias)
            return out
        return self.product((site.root, site.path), x, inner, None)

    def _call(
        self, inner: Callable[..., torch.Tensor], site: Site, arguments: Mapping[str, Any]
    ) -> torch.Tensor:
        self._now = self._text_of(site.root, arguments)
        self._shown.arithmetic += 2 * self._tokens(arguments) * self._weights.get(site.root, 0)
        try:
            return inner(arguments)
        finally:
            self._now = None
            self._shown.most_bytes(self._texts)

    def _text_of(self, root: str, arguments: Mapping[str, Any]) -> Text | None:
        """The entry of a call's text, made if there is none; None where it cannot be told which text it is."""
        sources, settings, reason = read_call(arguments)
        if torch.is_grad_enabled():
            reason = GRADIENTS
        if reason:
            self.counters.fall_back("denoiser", reason)
            return None
        found = [text for text in self._texts if text.is_of(root, sources, settings)]
        self._texts = [text for text in self._texts if text not in found and self._needed(text)]
        text = found[0] if found and found[0].unchanged() else Text(root, sources, settings)
        self._shown.texts += text not in found
        self._texts = [*self._texts, text][-MOST_TEXTS:]
        return text

    def _needed(self, text: Text) -> bool:
        """Whether the run still comes to the root that an entry is of, as far as is known."""
        step = self._run.now() if self._run is not None else None
        if (
            self._run is None
            or step is None
            or step.ambiguous
            or not 0 <= step.index < len(self._run.experts)
        ):
            return True
        return text.root in self._run.experts[step.index :]

    def _tokens(self, arguments: Mapping[str, Any]) -> int:
        step = self._run.now() if self._run is not None else None
        if step is None:
            return 0
        frames, height, width = step.grid
        return int(arguments["hidden_states"].shape[0]) * frames * height * width

    def _forget(self) -> None:
        self._texts, self._now = [], None


class _Shown:
    """What a run's evidence says beside the counters."""

    def __init__(self) -> None:
        self.texts = 0
        self.saved = 0
        self.arithmetic = 0
        self._bytes = 0

    def most_bytes(self, texts: list[Text]) -> None:
        """Looks at what is kept after a call."""
        kept = (tensor for text in texts for tensor in text.products())
        self._bytes = max(self._bytes, sum(tensor.numel() * tensor.element_size() for tensor in kept))

    def values(self) -> dict[str, object]:
        """``saved_share`` is a part of the products of the blocks' linear layers, attention itself not counted."""
        share = {"saved_share": self.saved / (self.arithmetic + self.saved)} if self.arithmetic else {}
        return {"texts": self.texts, "kept_bytes": self._bytes, "saved_flops": self.saved, **share}


def _weights_per_token(root: nn.Module) -> int:
    """The multiplications per token of a root's blocks, without the layers that see only the text."""
    layers = [
        (path, layer)
        for path, layer in root.named_modules()
        if isinstance(layer, nn.Linear) and "blocks." in path and not path.endswith(ROLES)
    ]
    return sum(layer.in_features * layer.out_features for _, layer in layers)
