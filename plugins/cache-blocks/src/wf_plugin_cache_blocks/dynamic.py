"""``dynamicblock``: every block decides for itself whether its input has changed enough to be computed again.

With ``decide="previous-call"`` the blocks of a call measure how far their inputs have moved, on the device; at the
start of the branch's next call these numbers are read back together and continued to it. With ``"each-block"`` every
block reads back its own before it runs, which is one wait for the device per block.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from wf_core.api import (
    CacheState,
    Decision,
    Reason,
    geometry,
)
from wf_plugin_cache_blocks.cache import BlockCache, Call, Inner, sampled, worst_of
from wf_plugin_cache_blocks.rule import BELOW, Rule, Verdict, expected, reason_of

if TYPE_CHECKING:
    from wf_core.api import RunView, Step

FREE = "each-block"
NOT_FINITE_BLOCK = "what a block was compared by was not a finite number; the block was computed"


class Block:
    """What one branch keeps of one block: its residual ``[B, L, D]``, and a former input ``[B, L, ceil(D / factor)]``.

    ``reference_at`` is the solver step of that input.
    """

    __slots__ = ("reference", "reference_at", "residual", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.residual: torch.Tensor | None = None
        self.reference: torch.Tensor | None = None
        self.reference_at = 0


class BlocksState(CacheState):
    """One branch. A ``value`` is the hidden states ``[B, L, D]`` that enter the stack; of a block, `at` names which."""

    def __init__(self, cache: DynamicBlockCache, steps: int) -> None:
        self._cache = cache
        self._settings = cache.settings
        self._steps = steps
        self._blocks: dict[int, Block] = {}
        self._measured: tuple[torch.Tensor, tuple[int, ...]] | None = None
        self.verdicts: dict[int, Verdict] = {}

    def block(self, index: int) -> Block:
        """What is kept of a block."""
        if index not in self._blocks:
            self._blocks[index] = Block(self._settings.rule())
        return self._blocks[index]

    def decide(self, step: Step, value: torch.Tensor) -> Decision:
        """At the start of a call: whether any block may be skipped. ``verdicts`` then holds what is known of each."""
        self.verdicts = {}
        reason = self.ready(value)
        if reason:
            self._blocks, self._measured = {}, None
            return Decision(True, reason)
        reason = self._settings.window.reason(step.index, step.total or self._steps)
        if reason:
            return Decision(True, reason)
        if self._settings.decide == FREE:
            return Decision(False, FREE)
        if self._measured is None:
            return Decision(True, "not-measured")
        self._judge_all(step, *self._measured)
        return decision_of(self.verdicts.values())

    def measure(self, distances: list[torch.Tensor], over: list[int]) -> None:
        """A call is over: how far each block's input was from its reference, and how many steps that reference was old.

        Nothing is read back. Fewer distances than blocks: a block had no reference, and nothing is known of the call.
        """
        complete = len(distances) == len(self._blocks) > 0
        self._measured = (torch.stack(distances), tuple(over)) if complete else None

    def commit(self, step: Step, value: torch.Tensor, output: torch.Tensor) -> None:
        """Nothing is kept of the stack as a whole: each block keeps its own."""

    def predict(self, step: Step, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a call of dynamicblock is predicted block by block")

    def ready(self, value: torch.Tensor) -> str:
        kept = next((block.residual for block in self._blocks.values()), None)
        if kept is None:
            return Reason.NOTHING_CACHED
        return "" if geometry(kept) == geometry(value) else Reason.GEOMETRY_CHANGED

    def held(self) -> Iterable[torch.Tensor]:
        kept = [tensor for block in self._blocks.values() for tensor in (block.residual, block.reference)]
        distances = self._measured[0] if self._measured is not None else None
        return tuple(tensor for tensor in (*kept, distances) if tensor is not None)

    def _judge_all(self, step: Step, distances: torch.Tensor, over: tuple[int, ...]) -> None:
        numbers = self._cache.read_back(distances)
        for (index, block), number, steps in zip(self._blocks.items(), numbers, over, strict=True):
            difference = expected(number, steps, step.index - block.reference_at)
            self.verdicts[index] = block.rule.judge(difference)


def decision_of(verdicts: Iterable[Verdict]) -> Decision:
    """A call's decision from those of its blocks: computed when none is skipped. Its metric is the least difference."""
    found = tuple(verdicts)
    reason = reason_of(found)
    finite = [verdict.difference for verdict in found if verdict.reason != Reason.NOT_FINITE]
    partly = any(verdict.reason == Reason.NOT_FINITE for verdict in found) and reason != Reason.NOT_FINITE
    fallback = NOT_FINITE_BLOCK if partly else ""
    return Decision(reason != BELOW, reason, min(finite, default=None), fallback)


class DynamicCall(Call):
    """One call. ``forced``: every block is computed."""

    def __init__(
        self, cache: DynamicBlockCache, state: BlocksState, step: Step, entered: torch.Tensor
    ) -> None:
        super().__init__()
        self._cache = cache
        self._state = state
        self._step = step
        self._decision = cache.settle(state, step, entered)
        self._each = self._decision.reason == FREE
        self._distances: list[torch.Tensor] = []
        self._over: list[int] = []

    def block(self, inner: Inner, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        if self._step.ambiguous:
            return self.run(inner, hidden_states)
        block, settings = self._state.block(index), self._cache.settings
        sample = sampled(hidden_states, settings.downsample)
        verdict = self._verdict(index, block, sample)
        if verdict is None or verdict.compute or block.residual is None:
            output, computed = self.run(inner, hidden_states), True
            block.residual = (output - hidden_states).detach()
        else:
            output, computed = hidden_states + block.residual, False
        block.rule.took(computed)
        if settings.refreshes(computed):
            block.reference = sample.detach().clone(memory_format=torch.contiguous_format)
            block.reference_at = self._step.index
        return output

    def close(self) -> Decision:
        if self._step.ambiguous:
            return self._decision
        if not self._each:
            self._state.measure(self._distances, self._over)
            return self._decision
        decision = decision_of(self._state.verdicts.values())
        self._cache.tell(decision)
        return decision

    def _verdict(self, index: int, block: Block, sample: torch.Tensor) -> Verdict | None:
        """What is said of a block that is reached now; None where it is computed anyway."""
        verdicts = self._state.verdicts
        if block.reference is None or (self._cache.settings.decide == FREE and not self._each):
            return verdicts.get(index)
        distance = worst_of(sample, block.reference)
        if self._each:
            (difference,) = self._cache.read_back(distance)
            verdicts[index] = block.rule.judge(difference)
        else:
            self._distances.append(distance)
            self._over.append(self._step.index - block.reference_at)
        return verdicts.get(index)


class DynamicBlockCache(BlockCache):
    """The technique.

    A kept residual is added as it was computed: deriving it anew from a skipped call, as LightX2V does, adds a rounding
    error each time.
    """

    @property
    def warm_up(self) -> int:
        return 1 if self.settings.decide == FREE else 2

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return BlocksState(self, run.num_inference_steps)

    def open(self, state: Any, step: Step, hidden_states: torch.Tensor) -> Call:
        return DynamicCall(self, state, step, hidden_states)
