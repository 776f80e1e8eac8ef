"""What one branch of one expert keeps, and who decides: the branch that is called first in a step leads it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import (
    CacheState,
    Decision,
    Reason,
    Window,
    geometry,
)
from wf_plugin_cache_easycache.measuring import Measurement
from wf_plugin_cache_easycache.rule import Settings, Skips

if TYPE_CHECKING:
    import torch

    from wf_core.api import FeatureCounters, RunView, Step


class Turn:
    """The step in progress of one expert: which branch leads it, and what it decided. Holds no tensor."""

    def __init__(self) -> None:
        self.index = -1
        self.leader = ""
        self.compute = True
        self.computed_at = -1

    def leads(self, step: Step) -> bool:
        """Whether the branch of this call leads its step."""
        return step.index == self.index and step.branch == self.leader

    def follows(self, step: Step) -> bool:
        """Whether another branch has decided this step."""
        return step.index == self.index and step.branch != self.leader

    def take(self, step: Step, compute: bool) -> None:
        """The branch of this call leads, and has decided."""
        self.index, self.leader, self.compute = step.index, step.branch, compute
        if compute:
            self.computed_at = step.index


class EasyState(CacheState):
    """Keeps ``v - x`` ``[B, C, T', H', W']`` of the branch's last computed step and adds it to a later latent.

    A branch that leads also keeps a `Measurement`; one that follows drops it, so that a rate is never made from the
    outputs of two branches, nor from before a time in which another one led.
    """

    def __init__(self, settings: Settings, run: RunView, turn: Turn, counters: FeatureCounters) -> None:
        self._run = run
        self._turn = turn
        self._counters = counters
        self._window = Window(settings.first, settings.last)
        self._skips = Skips(settings.threshold, settings.max_skip)
        self._measured: Measurement | None = None
        self._offset: torch.Tensor | None = None
        self._kept: tuple[object, ...] = ()
        self._dtype: torch.dtype | None = None
        self._kept_at = -1

    def decide(self, step: Step, value: Mapping[str, Any]) -> Decision:
        if self._turn.follows(step):
            self._measured = None
            return self._follow()
        decision = self._lead(step, value)
        self._turn.take(step, decision.compute)
        return decision

    def forced(self, step: Step) -> None:
        if self._turn.leads(step):
            self._turn.take(step, compute=True)

    def commit(self, step: Step, value: Mapping[str, Any], output: torch.Tensor) -> None:
        output = output.detach()
        latent = _latent(value, output.shape[1])
        self._offset = output - latent
        self._kept, self._dtype, self._kept_at = geometry(latent), output.dtype, step.index
        if not self._turn.leads(step):
            return
        self._skips.reset()
        if self._measured is None or not self._measured.fits(latent):
            self._measured = Measurement(latent, output)
        else:
            self._measured.computed(latent, output)

    def predict(self, step: Step, value: Mapping[str, Any]) -> torch.Tensor:
        assert self._offset is not None, "nothing was computed"
        latent = _latent(value, self._offset.shape[1])
        if self._turn.leads(step) and self._measured is not None:
            self._measured.skipped(latent)
        return (latent + self._offset).to(self._dtype)

    def ready(self, value: Mapping[str, Any]) -> str:
        if self._offset is None:
            return Reason.NOTHING_CACHED
        return (
            "" if geometry(_latent(value, self._offset.shape[1])) == self._kept else Reason.GEOMETRY_CHANGED
        )

    def held(self) -> Iterable[torch.Tensor]:
        measured = self._measured.held() if self._measured is not None else ()
        return measured if self._offset is None else (self._offset, *measured)

    def _lead(self, step: Step, value: Mapping[str, Any]) -> Decision:
        reason = self._window.reason(step.index, self._run.total(step))
        reason = reason or self.ready(value)
        if reason:
            return Decision(True, reason)
        assert self._offset is not None
        if self._measured is None:
            return Decision(True, "leader-changed")
        if not self._measured.has_rate:
            return Decision(True, "rate-unknown")
        self._counters.add("host_syncs")
        accumulated = self._measured.offer(_latent(value, self._offset.shape[1]))
        compute, reason = self._skips.offer(accumulated)
        return Decision(compute, reason, None if reason == Reason.NOT_FINITE else accumulated)

    def _follow(self) -> Decision:
        """A follower that was not called at the leader's last computed step has only what is older: it is computed."""
        if self._turn.compute:
            return Decision(True, "leader-computed")
        if 0 <= self._kept_at < self._turn.computed_at:
            return Decision(True, "missed-step")
        return Decision(False, "leader-skipped")


def _latent(value: Mapping[str, Any], channels: int) -> torch.Tensor:
    """The solver's latent: the first channels of the call's input, behind which image-to-video puts conditions."""
    latent: torch.Tensor = value["hidden_states"][:, :channels]
    return latent.detach()
