"""One attention provider per feature. All of them look up a recipe by the call's signature and run it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping
from functools import partial
from typing import NoReturn

import torch
import torch.nn.functional as F

from wf_core.api import AttentionProvider, Ineligible, RunView
from wf_plugin_attention_sdpa import flex, operators, recipes
from wf_plugin_attention_sdpa.call import Call, careful_signature, signature
from wf_plugin_attention_sdpa.operators import Machine, Operator
from wf_plugin_attention_sdpa.recipes import Recipe

_MOST_RECIPES = 256
_SDPA_CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}


class CachedProvider(AttentionProvider):
    """Prepares each signature once per run; after that a call costs one look-up beside the kernel.

    ``evidence`` names what ran: it is noted while a recipe is prepared, so that a call counts nothing of its own.
    """

    sign = staticmethod(signature)

    def __init__(self) -> None:
        self._recipes: dict[tuple[object, ...], Recipe] = {}
        self._operators: dict[str, int] = {}
        self._steps: set[str] = set()

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        sign = self.sign(query, key, value, mask)
        recipe = self._recipes.get(sign)
        if recipe is None:
            recipe = self._remember(sign, self._judge(query, key, value, mask))
        return recipe(query, key, value, mask)

    def _judge(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        try:
            return self._prepare(query, key, value, mask)
        except Ineligible as why:
            return partial(_refuse, str(why))

    def _remember(self, sign: tuple[object, ...], recipe: Recipe) -> Recipe:
        if len(self._recipes) >= _MOST_RECIPES:
            self._recipes.clear()
        self._recipes[sign] = recipe
        return recipe

    @abstractmethod
    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        """The recipe for calls like this one, or ``Ineligible``."""

    def _note(self, operator: str, steps: tuple[str, ...] = ()) -> None:
        self._operators[operator] = self._operators.get(operator, 0) + 1
        self._steps.update(steps)

    def begin(self, run: RunView) -> None:
        self._operators.clear()
        self._steps.clear()

    def end(self) -> None:
        self._recipes.clear()  # flex's hold the tensors of a block mask

    def close(self) -> None:
        self.end()

    def evidence(self) -> Mapping[str, object]:
        """The operators that ran with the number of call signatures of each, and what was done around them."""
        return {"operators": dict(sorted(self._operators.items())), "around": sorted(self._steps)}


class OperatorProvider(CachedProvider):
    """Serves by the first of its operators that exists on the call's device."""

    feature = ""
    choices: tuple[Operator, ...] = ()

    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        call = Call.of(query, key, value, mask)
        operator = self._on(call.device.type)
        _require(call.problem() or operator.why_not(call, Machine.of(call.device)))
        recipe, steps = recipes.build(operator, call, lambda name: self.counters.add(name))
        self._note(operator.name, steps)
        return recipe

    def _on(self, device: str) -> Operator:
        for operator in self.choices:
            if operator.device in ("", device):
                return operator
        devices = " and ".join(operator.device for operator in self.choices)
        raise Ineligible(f"{self.feature} runs on {devices} devices only, this call is on {device}")


class Math(OperatorProvider):
    feature = "math"
    choices = (operators.MATH,)


class TorchFlash(OperatorProvider):
    feature = "torch-flash"
    choices = (operators.CPU_FLASH, operators.FLASH)
    sign = staticmethod(careful_signature)


class Efficient(OperatorProvider):
    feature = "efficient"
    choices = (operators.EFFICIENT,)
    sign = staticmethod(careful_signature)


class Cudnn(OperatorProvider):
    feature = "cudnn"
    choices = (operators.CUDNN,)
    sign = staticmethod(careful_signature)


class Flex(CachedProvider):
    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        call = Call.of(query, key, value, mask)
        _require(call.problem() or flex.why_not(call, Machine.of(call.device)))
        self._note(flex.NAME, ("compiled",) if call.device.type == "cuda" else ("uncompiled",))
        return flex.build(call)


class Sdpa(CachedProvider):
    """The public function, as diffusers' default processor calls it: torch chooses the kernel.

    Masks and layouts are handed over as they come, so that the result is that of the stock model bit for bit. Rows
    that attend to nothing are zeros, except where torch chooses cuDNN.
    """

    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        grouped = query.shape[2] != key.shape[2]
        self._note(_chosen(query, key, value, mask, grouped))
        return _public_grouped if grouped else _public


def _public(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask
    ).transpose(1, 2)


def _public_grouped(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return F.scaled_dot_product_attention(
        query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, enable_gqa=True
    ).transpose(1, 2)


def _chosen(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, grouped: bool
) -> str:
    """The kernel that torch chooses for such a call; it is asked once per signature, by a private function."""
    try:
        choice = torch._fused_sdp_choice(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, enable_gqa=grouped
        )
    except (AttributeError, TypeError, RuntimeError):
        return "sdpa:unknown"
    return f"sdpa:{_SDPA_CHOICES.get(choice, 'unknown')}"


def _require(reason: str) -> None:
    if reason:
        raise Ineligible(reason)


def _refuse(
    reason: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> NoReturn:
    raise Ineligible(reason)


PROVIDERS: Mapping[str, type[CachedProvider]] = {
    "sdpa": Sdpa,
    "math": Math,
    "torch-flash": TorchFlash,
    "efficient": Efficient,
    "cudnn": Cudnn,
    "flex": Flex,
}
"""Feature name -> provider."""
