"""``firstblock`` and ``dualblock``: the first blocks tell whether the middle ones are needed.

``firstblock`` has one block in front and none in the tail; otherwise the two are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, NamedTuple

import torch

from wf_core.api import (
    Decision,
    Reason,
    ResidualState,
)
from wf_plugin_cache_blocks.cache import BlockCache, Call, Inner, sampled, worst_of
from wf_plugin_cache_blocks.rule import Parts

if TYPE_CHECKING:
    from wf_core.api import CacheState, RunView, Step
    from wf_plugin_cache_blocks.settings import Settings

NO_MIDDLE = "all blocks run at every step, so that none could be skipped"


class Front(NamedTuple):
    """What the front blocks gave: their output ``[B, L, D]``, and what they changed, ``[B, L, ceil(D / factor)]``."""

    output: torch.Tensor
    change: torch.Tensor


class Added:
    """What blocks, one after another, added to the hidden states themselves.

    Where a block is not given the very tensor that the one before it returned, the model has added something between
    them (VACE its hints), which is no block's and is left out. Where nothing was added this costs one subtraction.
    """

    __slots__ = ("_begin", "_end", "_sum")

    def __init__(self) -> None:
        self._sum: torch.Tensor | None = None
        self._begin: torch.Tensor | None = None
        self._end: torch.Tensor | None = None

    def block(self, entered: torch.Tensor, output: torch.Tensor) -> None:
        """The next block was given ``entered`` and returned ``output``, both ``[B, L, D]``."""
        if entered is not self._end:
            self._close()
            self._begin = entered
        self._end = output

    def total(self) -> torch.Tensor | None:
        """The sum ``[B, L, D]`` in the blocks' dtype; None where there was no block."""
        self._close()
        return self._sum

    def _close(self) -> None:
        if self._begin is None or self._end is None:
            return
        part = (self._end - self._begin).detach()
        self._sum = part if self._sum is None else self._sum + part
        self._begin = self._end = None


class ProbeState(ResidualState):
    """One branch: the residual ``[B, L, D]`` of the middle blocks, and the front ones' change to compare with.

    ``read_back`` brings distances to the host; ``steps`` is the run's number of steps, for calls that do not say it.
    """

    def __init__(
        self, settings: Settings, steps: int, read_back: Callable[[torch.Tensor], list[float]]
    ) -> None:
        super().__init__()
        self._settings = settings
        self._steps = steps
        self._read_back = read_back
        self._rule = settings.rule()
        self._reference: torch.Tensor | None = None

    def decide(self, step: Step, value: Front) -> Decision:
        reason = self.ready(value) or self._settings.window.reason(step.index, step.total or self._steps)
        if reason or self._reference is None:
            return Decision(True, reason or Reason.NOTHING_CACHED)
        (difference,) = self._read_back(worst_of(value.change, self._reference))
        verdict = self._rule.judge(difference)
        return Decision(verdict.compute, verdict.reason, difference)

    def ready(self, value: Front) -> str:
        return super().ready(value.output)

    def commit(self, step: Step, value: Front, output: torch.Tensor) -> None:
        """After a computed call; ``output`` is what the middle blocks added."""
        self._residuals.add(step.index, output)
        self._passed(value, computed=True)

    def skipped(self, value: Front) -> None:
        """After a skipped call."""
        self._passed(value, computed=False)

    def held(self) -> Iterable[torch.Tensor]:
        return (*super().held(), *(() if self._reference is None else (self._reference,)))

    def _passed(self, value: Front, *, computed: bool) -> None:
        self._rule.took(computed)
        if self._settings.refreshes(computed):
            self._reference = value.change


class ProbeCall(Call):
    """One call. ``layers`` is the number of blocks, 0 where it is not known yet: then nothing is kept of the call."""

    def __init__(
        self, cache: ProbeCache, state: ProbeState, step: Step, entered: torch.Tensor, layers: int
    ) -> None:
        super().__init__()
        self._cache = cache
        self._state = state
        self._step = step
        self._entered = entered
        self._layers = layers
        self._parts = cache.settings.parts
        self._middle = Added()
        self._front: Front | None = None
        self._decision = Decision(True, "no-middle-blocks")

    def block(self, inner: Inner, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        if self._parts.of(index, self._layers) != "middle":
            output = self.run(inner, hidden_states)
        elif self._decision.compute:
            output = self.run(inner, hidden_states)
            self._middle.block(hidden_states, output)
        elif index == self._parts.front:
            output = self._state.predict(self._step, hidden_states)
        else:
            output = hidden_states
        if index == self._parts.front - 1:
            self._decide(output)
        return output

    def close(self) -> Decision:
        decision, front, added = self._decision, self._front, self._middle.total()
        known = self._cache.reached(self._step.expert, self.seen) == self._layers
        if front is None or self._step.ambiguous:
            return decision
        if not decision.compute:
            self._state.skipped(front)
        elif added is None:
            self._cache.counters.fall_back("block", NO_MIDDLE)
        elif known or not self._parts.tail:
            self._state.commit(self._step, front, added)
        return decision

    def _decide(self, output: torch.Tensor) -> None:
        factor = self._cache.settings.downsample
        change = (sampled(output, factor) - sampled(self._entered, factor)).detach()
        self._front = Front(output, change)
        self._decision = self._cache.settle(self._state, self._step, self._front)


class ProbeCache(BlockCache):
    """The technique. The residual that is kept is what the middle blocks themselves added, see `Added`."""

    def __init__(self, settings: Settings) -> None:
        super().__init__(settings)
        self._layers: dict[str, int] = {}

    def check(self, run: RunView) -> Iterable[str]:
        """Refuses a model whose blocks all run at every step."""
        layers, parts = blocks_of(run), self.settings.parts
        if not layers or len(parts.middle(layers)):
            return ()
        runs = f"the first {parts.front} and the last {parts.tail} of {layers} blocks run at every step"
        advice = ": give front_blocks and tail_blocks that are fewer together than the model's blocks"
        return (f"{runs} and leave none to skip{advice if parts != Parts(1, 0) else ''}",)

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._layers = {}

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return ProbeState(self.settings, run.num_inference_steps, self.read_back)

    def open(self, state: Any, step: Step, hidden_states: torch.Tensor) -> Call:
        run, _ = self.now()
        layers = self._layers.get(step.expert) or blocks_of(run)
        return ProbeCall(self, state, step, hidden_states, layers)

    def reached(self, expert: str, blocks: int) -> int:
        """An expert's call reached so many blocks: what the next one counts on. Returns it."""
        self._layers[expert] = blocks
        return blocks


def blocks_of(run: RunView) -> int:
    """The number of blocks that a call goes through, of all kinds; 0 where it is not known."""
    return int(run.facts.get("model.blocks") or 0)
