"""``dynamicblock``: every block decides for itself whether its input has changed enough to be computed again.

With ``decide="previous-call"`` the blocks of a call measure how far their inputs have moved, on the device; at the
start of the branch's next call these numbers are read back together and continued to it. With ``"each-block"`` every
block reads back its own before it runs, which is one wait for the device per block.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from wf_core.api import (
    CacheState,
    Decision,
    Reading,
    Reason,
    geometry,
    retained,
)
from wf_plugin_cache_blocks.cache import BlockCache, Call, Inner, sampled, worst_of
from wf_plugin_cache_blocks.comparison import Comparison, FormerInputs
from wf_plugin_cache_blocks.rule import BELOW, Rule, Verdict, expected, reason_of

if TYPE_CHECKING:
    from wf_core.api import RunView, Step
    from wf_plugin_cache_blocks.settings import Settings

FREE = "each-block"
NOT_FINITE_BLOCK = "what a block was compared by was not a finite number; the block was computed"


class Block:
    """What one branch keeps of one block: what it added ``[B, L, D]``, and a former input ``[B, L, ceil(D / factor)]``.

    The block's input and output stand for what it added until that is asked for: the output is the next block's input,
    and keeping both costs a computed call nothing. ``reference_at`` is the solver step of ``reference``, which is None
    where the blocks are compared together and it stands in a row of `BlocksState.references`.
    """

    __slots__ = ("_between", "_residual", "reference", "reference_at", "rule")

    def __init__(self, rule: Rule) -> None:
        self.rule = rule
        self.reference: torch.Tensor | None = None
        self.reference_at = 0
        self._between: tuple[torch.Tensor, torch.Tensor] | None = None
        self._residual: torch.Tensor | None = None

    @property
    def computed_once(self) -> bool:
        """Whether the block can be skipped."""
        return self._between is not None or self._residual is not None

    def computed(self, entered: torch.Tensor, output: torch.Tensor) -> None:
        """The block was computed. Both tensors are taken, and nobody may write to them."""
        self._between, self._residual = (entered, output), None

    def residual(self) -> torch.Tensor:
        """What the block added when it was computed last. Its input and output are let go of."""
        if self._residual is None:
            assert self._between is not None, "the block was never computed"
            entered, output = self._between
            self._between, self._residual = None, output - entered
        return self._residual

    def held(self) -> Iterable[torch.Tensor]:
        """The tensors kept now; of two blocks one may have the other's."""
        return tuple(
            tensor
            for tensor in (*(self._between or ()), self._residual, self.reference)
            if tensor is not None
        )


class BlocksState(CacheState):
    """One branch. A ``value`` is the hidden states ``[B, L, D]`` that enter the stack; of a block, `at` names which."""

    def __init__(self, cache: DynamicBlockCache, steps: int) -> None:
        self._cache = cache
        self._settings = cache.settings
        self._steps = steps
        self._blocks: dict[int, Block] = {}
        self._measured: tuple[Reading, tuple[int, ...]] | None = None
        self.references: dict[int, FormerInputs] = {}
        """Former inputs of as many blocks as are compared together, by the first one's index; see `Comparison`."""
        self.verdicts: dict[int, Verdict] = {}

    def block(self, index: int) -> Block:
        """What is kept of a block."""
        if index not in self._blocks:
            self._blocks[index] = Block(self._settings.rule())
        return self._blocks[index]

    def decide(self, step: Step, value: torch.Tensor) -> Decision:
        """At the start of a call: whether any block may be skipped. ``verdicts`` then holds what is known of each."""
        self.verdicts = {}
        window, reason = self._settings.window.reason(step.index, self._total(step)), self.ready(value)
        if reason:
            self._blocks, self.references, self._measured = {}, {}, None
        if window or reason:
            return Decision(True, window or reason)
        if self._settings.decide == FREE:
            return Decision(False, FREE)
        if self._measured is None:
            return Decision(True, "not-measured")
        self._judge_all(step, *self._measured)
        return decision_of(self.verdicts.values())

    def forced(self, step: Step) -> None:
        self.verdicts = {}

    def serves(self, step: Step) -> bool:
        """Whether what is kept of a call can serve a later one. A call is decided by what the two before it showed, by
        one where each block decides alone.
        """
        window, total = self._settings.window, self._total(step)
        ahead = 1 if self._settings.decide == FREE else 2
        free = step.index + 1 < total - window.last if total else not window.last
        return free and step.index + ahead >= window.first

    def measure(self, distances: torch.Tensor | None, over: list[int]) -> None:
        """A call is over: how far each block's input was from its reference, and how many steps that reference was old.

        Nothing is waited for. Fewer distances than blocks: a block had no reference, and nothing is known of the call.
        """
        if distances is None or len(over) != len(self._blocks):
            self._measured = None
        else:
            self._measured = Reading(distances), tuple(over)

    def commit(self, step: Step, value: torch.Tensor, output: torch.Tensor) -> None:
        """Nothing is kept of the stack as a whole: each block keeps its own."""

    def predict(self, step: Step, value: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError("a call of dynamicblock is predicted block by block")

    def ready(self, value: torch.Tensor) -> str:
        block = next((block for block in self._blocks.values() if block.computed_once), None)
        if block is None:
            return Reason.NOTHING_CACHED
        return "" if geometry(next(iter(block.held()))) == geometry(value) else Reason.GEOMETRY_CHANGED

    def held(self) -> Iterable[torch.Tensor]:
        blocks = (tensor for block in self._blocks.values() for tensor in block.held())
        measured = () if self._measured is None else (self._measured[0].copied,)
        return (*blocks, *itertools.chain.from_iterable(self.references.values()), *measured)

    def _total(self, step: Step) -> int:
        return step.total or self._steps

    def _judge_all(self, step: Step, distances: Reading, over: tuple[int, ...]) -> None:
        numbers = self._cache.read_back(distances.numbers())
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
    """One call, all of whose blocks are computed where nothing else was decided."""

    def __init__(
        self, cache: DynamicBlockCache, state: BlocksState, step: Step, entered: torch.Tensor
    ) -> None:
        super().__init__()
        self._cache = cache
        self._state = state
        self._step = step
        self._entered = entered
        self._decision = cache.settle(state, step, entered)
        self._each = self._decision.reason == FREE
        self._comparison = Comparison(state.references, step.index)
        self._serves = state.serves(step)
        self._last: tuple[Block, torch.Tensor, torch.Tensor] | None = None
        """The block that was computed last, with what is kept of its input and output."""
        self._in_a_row = 0
        """So many blocks were computed up to that one, each with the output of the one before it as its input."""
        self._previous_output: torch.Tensor | None = None
        """That output as the block gave it, which may be the next block's input."""

    def block(self, inner: Inner, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        if self._step.ambiguous:
            return self.run(inner, hidden_states)
        block, settings = self._state.block(index), self._cache.settings
        sample = sampled(hidden_states, settings.downsample)
        verdict = self._verdict(index, block, sample)
        computed = verdict is None or verdict.compute or not block.computed_once
        if computed:
            output = self.run(inner, hidden_states)
            if self._serves:
                self._keep(block, hidden_states, output)
        else:
            self._end_of_row()
            output = hidden_states + block.residual()
        block.rule.took(computed)
        if not self._serves:
            return output
        refreshes = settings.refreshes(computed)
        if settings.decide != FREE:
            self._comparison.add(index, block, sample, refreshes)
        elif refreshes:
            block.reference = sample.detach().clone(memory_format=torch.contiguous_format)
            block.reference_at = self._step.index
        return output

    def close(self) -> Decision:
        if self._step.ambiguous:
            return self._decision
        if self._last is not None and self._in_a_row > 1:
            block, entered, output = self._last  # what leaves the stack is not the blocks' alone
            block.computed(entered, output.clone())
        self._end_of_row()
        if self._cache.settings.decide != FREE:
            self._state.measure(self._comparison.distances(), self._comparison.over)
            self._cache.compared(self._comparison.fused, self._comparison.not_fused)
            return self._decision
        if not self._each:
            return self._decision
        decision = decision_of(self._state.verdicts.values())
        self._cache.tell(decision)
        return decision

    def _keep(self, block: Block, entered: torch.Tensor, output: torch.Tensor) -> None:
        """A computed block's tensors. What enters the stack is copied: it is not the blocks' alone."""
        if self._previous_output is entered and self._last is not None:
            before = self._last[2]
            self._in_a_row += 1
        else:
            self._end_of_row()
            before = entered.detach().clone() if entered is self._entered else retained(entered)
            self._in_a_row = 1
        after = retained(output)
        block.computed(before, after)
        self._last, self._previous_output = (block, before, after), output

    def _end_of_row(self) -> None:
        """One block alone shares neither its input nor its output: the difference is kept in their place."""
        if self._last is not None and self._in_a_row == 1:
            self._last[0].residual()
        self._last = self._previous_output = None
        self._in_a_row = 0

    def _verdict(self, index: int, block: Block, sample: torch.Tensor) -> Verdict | None:
        """What is said of a block that is reached now; None where it is computed anyway."""
        verdicts = self._state.verdicts
        if self._each and block.reference is not None:
            (difference,) = self._cache.read_back(worst_of(sample, block.reference))
            verdicts[index] = block.rule.judge(difference)
        return verdicts.get(index)


class DynamicBlockCache(BlockCache):
    """The technique.

    A kept residual is added as it was computed: deriving it anew from a skipped call, as LightX2V does, adds a rounding
    error each time. Counts ``fused_comparisons`` besides, the blocks whose input the kernel of `fused` compared.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._not_fused = ""

    @property
    def warm_up(self) -> int:
        return 1 if self.settings.decide == FREE else 2

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._not_fused = ""

    def compared(self, fused_comparisons: int, why_not: str) -> None:
        """A call's blocks were compared, so many of them by the kernel of `fused`; ``why_not`` is for large ones."""
        if fused_comparisons:
            self.counters.add("fused_comparisons", fused_comparisons)
        self._not_fused = why_not or self._not_fused

    def evidence(self) -> Mapping[str, object]:
        told = {"not_fused": self._not_fused} if self._not_fused else {}
        return {**super().evidence(), **told}

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return BlocksState(self, run.num_inference_steps)

    def open(self, state: Any, step: Step, hidden_states: torch.Tensor) -> Call:
        return DynamicCall(self, state, step, hidden_states)
