"""Calibration: a technique that computes every step and ends in a preset for a feature cache."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.kinds.techniques import Technique

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.runview import RunView
    from wf_core.model.identity import Step
    from wf_core.model.seams import Handler, Site


class Calibrator(Technique):
    """Stands at the ``stack`` seam, changes nothing, and sees every input and output of the blocks."""

    def __init__(self) -> None:
        self._run: RunView | None = None

    @abstractmethod
    def observe(self, step: Step, hidden_states: torch.Tensor, output: torch.Tensor) -> None:
        """One computed call: the stack's input and output ``[B, L, D]``."""

    @abstractmethod
    def result(self) -> Mapping[str, Any]:
        """The preset as plain JSON values, with a measure of its fit, from all runs seen so far."""

    def handlers(self) -> Mapping[str, Handler]:
        return {"stack": self._around}

    def begin(self, run: RunView) -> None:
        self._run = run

    def end(self) -> None:
        self._run = None

    def close(self) -> None:
        self.end()

    def _around(
        self, inner: Callable[[torch.Tensor], torch.Tensor], site: Site, hidden_states: torch.Tensor
    ) -> torch.Tensor:
        output = inner(hidden_states)
        step = self._run.now() if self._run is not None else None
        if step is not None:
            self.observe(step, hidden_states, output)
            self.counters.add("observed")
        return output
