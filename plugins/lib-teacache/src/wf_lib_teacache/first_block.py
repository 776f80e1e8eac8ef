"""TeaCache by the first block's modulated input, as the authors' scripts for HunyuanVideo and Cosmos have it.

``norm(x) * (1 + scale) + shift`` of the first block depends on the latent. So a call is entered, and is left at the
first block's first norm where that says so: what is lost of a skipped call is what comes before the blocks, one norm,
and one wait for the device.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch

from wf_core.api import Decision, FeatureCache, retained
from wf_lib_teacache.cache import TeaCache, shown_of
from wf_lib_teacache.presets import BLOCK
from wf_lib_teacache.states import BlockState, Entered

if TYPE_CHECKING:
    from wf_core.api import CacheState, Handler, RunView, Site, Step
    from wf_lib_teacache.settings import Settings

NORM = "norm_modulate"
ROLES = ("self", "joint")
UNSEEN = "the first block's modulated input was not seen; the step was computed"
CAUGHT = "a layer kept a skipped call from being left; the step was computed"


def technique_for(settings: Settings, order: int = 0) -> FeatureCache:
    """The technique that decides by the signal of these settings."""
    return (FirstBlockTeaCache if settings.signal == BLOCK else TeaCache)(settings, order)


class _CallSkipped(BaseException):
    """Raised through the blocks of a call that is skipped, and caught where it entered them. Not an ``Exception``: it
    is no error, and no layer between may take it for one.
    """

    def __init__(self, call: _Call) -> None:
        super().__init__("a call of this session was skipped")
        self.call = call


class _Call:
    """One transformer call in progress. ``tokens`` is the number of tokens of the latent."""

    def __init__(self, step: Step, state: BlockState, hidden_states: torch.Tensor) -> None:
        frames, height, width = step.grid
        self.step = step
        self.state = state
        self.hidden_states = hidden_states
        self.tokens = frames * height * width
        self.parts: list[torch.Tensor] = []
        self.entered: Entered | None = None
        self.decision: Decision | None = None

    def see(self, part: torch.Tensor) -> bool:
        """A part of the modulated input ``[B, L', D]``, after those of the tokens before; whether it is complete."""
        self.parts.append(part)
        if sum(seen.shape[1] for seen in self.parts) < self.tokens:
            return False
        whole = retained(part) if len(self.parts) == 1 else torch.cat(self.parts, dim=1).detach()
        self.entered = Entered(self.hidden_states, whole)
        return True


class FirstBlockTeaCache(FeatureCache):
    """One session's TeaCache on a signal that is seen in the call itself. Source of the rule: arXiv 2411.19108.

    Counts ``host_syncs`` beside ``computed`` and ``skipped``: one for each call that the rule decides about. Keeps the
    signal and ``order + 1`` residuals ``[B, L, D]`` for each branch.
    """

    def __init__(self, settings: Settings, order: int = 0) -> None:
        super().__init__()
        self.settings = settings
        self.order = order
        self._call: _Call | None = None

    def handlers(self) -> Mapping[str, Handler]:
        return {"stack": self._stack, NORM: self._norm}

    def wants(self, site: Site) -> bool:
        return site.seam != NORM or is_first_norm(site)

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._call = None
        total, settings = run.num_inference_steps, self.settings
        first = max(settings.first, 1)
        if 0 < total <= first + settings.last:
            self.counters.fall_back(
                self.seam,
                f"all {total} steps are computed: the first {first} and the last {settings.last} always are",
            )

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return BlockState(self.settings, run, self.order, self.counters)

    def evidence(self) -> Mapping[str, object]:
        return {"decisions": "live", **shown_of(self.settings, self.order)}

    def _stack(
        self, inner: Callable[[Any], torch.Tensor], site: Site, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        _, step = self.now()
        state = self.state(step)
        assert isinstance(state, BlockState)
        call = self._call = _Call(step, state, hidden_states)
        try:
            output = self._through(inner, call)
        except BaseException:
            self.forget()  # the rule has taken the call for computed
            raise
        finally:
            self._call = None
        self.record(step, call.decision or Decision(True, "unseen"))
        return output

    def _through(self, inner: Callable[[Any], torch.Tensor], call: _Call) -> torch.Tensor:
        """The blocks, or what stands for them where the first norm said so."""
        try:
            output = inner(call.hidden_states)
        except _CallSkipped as skipped:
            if skipped.call is not call:
                raise
            assert call.entered is not None
            return call.state.predict(call.step, call.entered)
        self._computed(call, output)
        return output

    def _computed(self, call: _Call, output: torch.Tensor) -> None:
        if call.decision is not None and not call.decision.compute:
            self.counters.fall_back(NORM, CAUGHT)
            call.decision = Decision(True, "not-left", call.decision.metric)
        if call.decision is None or call.entered is None:
            self.counters.fall_back(NORM, UNSEEN)
        if call.step.ambiguous or call.entered is None:
            self.forget()
        else:
            call.state.commit(call.step, call.entered, output)

    def _norm(
        self, inner: Callable[..., torch.Tensor], site: Site, norm: Any, x: torch.Tensor, *rows: Any
    ) -> torch.Tensor:
        output = inner(norm, x, *rows)
        call = self._call
        if call is None or call.decision is not None or not call.see(output):
            return output
        call.decision = self.settle(call.state, call.step, call.entered)
        if not call.decision.compute:
            raise _CallSkipped(call)
        return output


def is_first_norm(site: Site) -> bool:
    """Whether a ``norm_modulate`` site is the first of the first block, on the stream of the latent's tokens."""
    return site.index == 0 and site.role in ROLES and site.path.endswith(".norm1")
