"""The base class of attention backends: a call is judged once per run and signature, and then only served."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from functools import partial
from typing import NoReturn

import torch

from wf_core.api import AttentionProvider, Ineligible, RunView
from wf_lib_attention.call import signature

Recipe = Callable[[torch.Tensor, torch.Tensor, torch.Tensor, "torch.Tensor | None"], torch.Tensor]
"""``recipe(query, key, value, mask)``, all in BLHD as at the seam -> BLHD."""
MOST_RECIPES = 256


class CachedProvider(AttentionProvider):
    """Prepares each signature once per run; after that a call costs one look-up beside the kernel.

    ``evidence`` names what ran: it is noted while a recipe is prepared, so that a call counts nothing of its own. A
    call that cannot be served is remembered too, as a recipe that raises its reason.
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
            return refusing(str(why))

    def _remember(self, sign: tuple[object, ...], recipe: Recipe) -> Recipe:
        if len(self._recipes) >= MOST_RECIPES:
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
        self._recipes.clear()  # a recipe may hold tensors: flex's holds those of a block mask

    def close(self) -> None:
        self.end()

    def evidence(self) -> Mapping[str, object]:
        """The operators that ran with the number of call signatures of each, and what was done around them."""
        return {"operators": dict(sorted(self._operators.items())), "around": sorted(self._steps)}


def require(reason: str) -> None:
    """Raises ``Ineligible`` with the reason, if there is one."""
    if reason:
        raise Ineligible(reason)


def refusing(reason: str) -> Recipe:
    """The recipe of calls that cannot be served."""
    return partial(_refuse, reason)


def _refuse(
    reason: str, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> NoReturn:
    raise Ineligible(reason)
