"""What a model family's adapter offers the host. One instance per host; it keeps no state of a session."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from attrs import field, frozen

if TYPE_CHECKING:
    import torch
    from torch import nn

    from wf_core.model.wiring import Wiring


@frozen
class Schedule:
    """The scheduler's timesteps of one run, as floats in order, and the expert that computes each of them."""

    timesteps: tuple[float, ...] = ()
    experts: tuple[str, ...] = ()


@frozen
class CallPlan:
    """What a bound pipeline call amounts to, known before the text encoder runs.

    ``facts`` become ``run.*`` facts; ``problems`` are reasons, one sentence each with the nearest legal value, why
    the call cannot be made as asked.
    """

    schedule: Schedule
    branches: int
    facts: Mapping[str, Any] = field(factory=dict)
    problems: tuple[str, ...] = ()


class ModelFamily(ABC):
    """Adapter of one family of diffusers models: which parts a session owns, and where the seams are."""

    @abstractmethod
    def owned(self, base: Any) -> tuple[str, ...]:
        """Names of the pipeline's components that a session must copy; all others are shared."""

    def moved(self, base: Any) -> tuple[str, ...]:
        """Names of the components that the stock pipeline itself moves in its calls (a safety checker): that their
        tensors lie elsewhere after a run is no change of the base.
        """
        return ()

    @abstractmethod
    def roots(self, components: Mapping[str, Any]) -> Mapping[str, nn.Module]:
        """The denoisers among the components, by expert name (``transformer``, ``transformer_2``)."""

    @abstractmethod
    def install(self, components: Mapping[str, Any], wiring: Wiring) -> None:
        """Put the seams into the session's own copies. Inner seams that nobody claimed stay stock code."""

    @abstractmethod
    def unavailable_seams(self, components: Mapping[str, Any]) -> Mapping[str, str]:
        """Seam -> reason, for the seams that this adapter cannot open on these components."""

    @abstractmethod
    def plan_call(self, pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
        """Schedule, branches, facts and problems of a call of the family's pipelines with these bound arguments."""

    @abstractmethod
    def modulation(
        self, root: nn.Module, timesteps: tuple[float, ...] | torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        """The time signals at N scalar timesteps in fp32: ``{"e": [N, D], "e0": [N, 6 D]}``."""

    def release(self, components: Mapping[str, Any]) -> None:
        """The run has ended: drop per-call state that the stock code keeps on its modules."""

    def uninstall(self, components: Mapping[str, Any]) -> None:
        """The session closes: cut the references between copies, wiring and seams, so that nothing waits for the
        garbage collector. The copies need not work any more, only say that their session is closed.
        """
