"""What a technique may know about the run that begins."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from attrs import field, frozen

if TYPE_CHECKING:
    import torch

    from wf_core.facts import Facts
    from wf_core.model.identity import Step

Modulation = Callable[[str, "tuple[float, ...] | torch.Tensor"], "Mapping[str, torch.Tensor]"]


@frozen
class RunView:
    """One run, read only.

    ``timesteps`` are the scheduler's, in order, as floats (empty: the driver gave none); ``experts`` names the expert
    of each step; ``branches`` is the number of transformer calls per step. ``modulation(expert, timesteps)`` gives
    the family's time signals in fp32, ``{"e": [N, D], "e0": [N, 6 D]}``, at scalar timesteps. ``now()`` is the step
    being computed, None outside a transformer call.
    """

    num_inference_steps: int
    timesteps: tuple[float, ...]
    experts: tuple[str, ...]
    branches: int
    facts: Facts
    modulation: Modulation = field(repr=False, eq=False)
    now: Callable[[], Step | None] = field(repr=False, eq=False)

    def total(self, step: Step) -> int:
        """The run's number of solver steps, as the call or else the run says; 0 where nobody has said it."""
        return step.total or self.num_inference_steps
