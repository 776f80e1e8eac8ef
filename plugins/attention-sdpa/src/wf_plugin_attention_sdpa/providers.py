"""One attention provider per feature. All of them look up a recipe by the call's signature and run it."""

from __future__ import annotations

from collections.abc import Mapping

import torch
import torch.nn.functional as F

from wf_core.api import Ineligible
from wf_lib_attention import grouped, masks
from wf_lib_attention.caching import CachedProvider, Recipe, require
from wf_lib_attention.call import Call, careful_signature
from wf_lib_attention.machine import Machine
from wf_plugin_attention_sdpa import flex, operators, recipes
from wf_plugin_attention_sdpa.operators import Operator

_SDPA_CHOICES = {0: "math", 1: "flash", 2: "efficient", 3: "cudnn", 4: "overrideable"}
_FOLDED = "key heads kept, their queries made one sequence"


class OperatorProvider(CachedProvider):
    """Serves by the first of its operators that exists on the call's device."""

    feature = ""
    choices: tuple[Operator, ...] = ()

    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        call = Call.of(query, key, value, mask)
        operator = self._on(call.device.type)
        require(call.problem() or operator.why_not(call, Machine.of(call.device)))
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
        require(call.problem() or flex.why_not(call, Machine.of(call.device)))
        self._note(flex.NAME, ("compiled",) if call.device.type == "cuda" else ("uncompiled",))
        return flex.build(call)


class Sdpa(CachedProvider):
    """The public function, as diffusers' default processor calls it: torch chooses the kernel.

    Masks and layouts are handed over as they come, so that the result is that of the stock model bit for bit. Rows
    that attend to nothing are zeros, except where torch chooses cuDNN. The one exception: on compute capability 10
    torch may choose cuDNN for grouped heads, which returns wrong numbers for fewer than 8 key heads (pytorch issue
    193893); there the group becomes part of the query's length, and no kernel sees grouped heads. A call for which
    torch would write out more than 2 GiB of scores is refused.
    """

    stock_mask = True

    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        heads, key_heads = query.shape[2], key.shape[2]
        if heads == key_heads:
            self._note(_affordable(_chosen(query, key, value, mask), query, key, value, mask))
            return _public
        if key_heads < 8 and Machine.of(query.device).capability[0] == 10:
            require(Call.of(query, key, value, mask).problem())
            self._note("sdpa:folded", (_FOLDED,))
            return _public_folded
        chosen = _chosen(query, key, value, mask, enable_gqa=True)
        self._note(_affordable(chosen, query, key, value, mask))
        return _public_grouped


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


def _public_folded(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    lifted = None if mask is None else masks.lift(mask)
    return grouped.by_fold(
        F.scaled_dot_product_attention,
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        lifted,
    ).transpose(1, 2)


def _chosen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    enable_gqa: bool = False,
) -> str:
    """The kernel that torch chooses for such a call; it is asked once per signature, by a private function."""
    try:
        choice = torch._fused_sdp_choice(
            query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask, enable_gqa=enable_gqa
        )
    except (AttributeError, TypeError, RuntimeError):
        return "sdpa:unknown"
    return f"sdpa:{_SDPA_CHOICES.get(choice, 'unknown')}"


def _affordable(
    chosen: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> str:
    """The kernel chosen; ``Ineligible`` when it is the math kernel and the scores would not fit."""
    if chosen == "sdpa:math":
        require(operators.too_big(Call.of(query, key, value, mask), "torch's choice, the math kernel,"))
    return chosen


PROVIDERS: Mapping[str, type[CachedProvider]] = {
    "sdpa": Sdpa,
    "math": Math,
    "torch-flash": TorchFlash,
    "efficient": Efficient,
    "cudnn": Cudnn,
    "flex": Flex,
}
"""Feature name -> provider."""
