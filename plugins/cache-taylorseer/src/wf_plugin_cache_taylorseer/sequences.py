"""What ``blocktaylorseer`` keeps for one branch of one expert: a sequence for each of the model's inner branches."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wf_core.api import (
    CacheState,
    Decision,
    Differences,
    Follower,
    Reason,
    geometry,
    retained,
)

if TYPE_CHECKING:
    import torch

    from wf_core.api import StaticSchedule, Step


class Sequences(CacheState):
    """The outputs ``[B, L, D]`` of all branches of all blocks, before their gates.

    Of a block of Wan and Cosmos these are self-attention, cross-attention and feed-forward; of HunyuanVideo's the joint
    attention, over latent and text, and the feed-forward of each, and of a single-stream block one branch. They are
    sampled while a computed call runs (`open`, `keep` for each, `commit`) and predicted one by one, by the path of the
    module. A sample is the module's output itself, not a copy: ``order + 1`` of each are kept.
    """

    def __init__(self, schedule: StaticSchedule, order: int) -> None:
        self._follower = Follower(schedule)
        self._order = order
        self._kept: dict[str, Differences] = {}
        self._geometry: tuple[object, ...] = ()
        self._at: int | None = None
        """The step of the newest call whose samples are all there."""

    def decide(self, step: Step, value: Any) -> Decision:
        return self._follower.decide(step, self._at)

    def forced(self, step: Step) -> None:
        self._follower.forced(step)

    def ready(self, value: Any) -> str:
        if self._at is None:
            return Reason.NOTHING_CACHED
        return "" if geometry(value) == self._geometry else Reason.GEOMETRY_CHANGED

    def open(self, hidden_states: torch.Tensor) -> None:
        """A computed call begins with these hidden states. Until it is committed nothing can be predicted.

        What an earlier call left in part, or for another geometry, is dropped.
        """
        form = geometry(hidden_states)
        if self._at is None or form != self._geometry:
            self._kept.clear()
        self._geometry, self._at = form, None

    def keep(self, path: str, step: Step, output: torch.Tensor) -> None:
        """One sample: the output of the module at ``path``, which nobody writes to."""
        self._kept.setdefault(path, Differences(self._order)).add(step.index, retained(output))

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        """The computed call is done, and every sample of it is there."""
        self._at = step.index

    def fits(self, path: str, x: torch.Tensor) -> bool:
        """Whether what was sampled at the module at ``path`` has the shape of its input now."""
        sequence = self._kept.get(path)
        return sequence is None or sequence.held()[0].shape == x.shape

    def predict(self, step: Step, value: Any) -> torch.Tensor:
        """The output at a later step of the module at the path ``value``. Not to be written to."""
        sequence = self._kept.get(value)
        if sequence is None:
            raise RuntimeError(f"{value} is called at step {step.index} and was not at step {self._at}")
        return sequence.continued(step.index)

    def held(self) -> Iterable[torch.Tensor]:
        return tuple(tensor for sequence in self._kept.values() for tensor in sequence.held())
