"""What one branch of one expert keeps in a run, and how it predicts from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from wf_core.kinds.caching.decisions import (
    Decision,
    Reason,
)

if TYPE_CHECKING:
    import torch

    from wf_core.model.identity import Step


def geometry(tensor: torch.Tensor) -> tuple[object, ...]:
    """What two tensors have in common where one can be predicted from, or compared with, the other.

    Shape, dtype and device, as one value to keep and to compare.
    """
    return tuple(tensor.shape), tensor.dtype, tensor.device


class CacheState(ABC):
    """The state of one expert and branch in one run.

    ``value`` is what the seam's handlers are given: the hidden states ``[B, L, D]`` at ``stack``, the mapping of the
    call's arguments at ``denoiser`` and ``guidance``. ``output`` is what comes out there.
    """

    @abstractmethod
    def decide(self, step: Step, value: Any) -> Decision:
        """Called once per call of this branch that can be told, before anything is computed.

        Where it says skip and `ready` gives a reason against it, `forced` is called and the step is computed.
        """

    def forced(self, step: Step) -> None:
        """The runtime computes this step for a reason of its own: start the accumulation anew."""

    @abstractmethod
    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        """After a computed step: keep what prediction needs, detached and not aliasing the model's buffers."""

    @abstractmethod
    def predict(self, step: Step, value: Any) -> torch.Tensor:
        """The output of a skipped step. Must not write to what is kept."""

    @abstractmethod
    def ready(self, value: Any) -> str:
        """Empty when a prediction is possible for this input, else the reason why not."""

    @abstractmethod
    def held(self) -> Iterable[torch.Tensor]:
        """The tensors kept now."""


class Differences:
    """A sequence of tensors sampled at some steps, continued by finite differences up to ``order``.

    ``F0`` is the newest sample; with ``g`` steps between the two newest, ``F(k+1) = (F(k) - older F(k)) / g``. At
    ``d`` steps after the newest sample the continuation is ``sum F(k) d^k / k!`` (arXiv 2503.06923, section 3.2). One
    gap serves all orders, so that order 1 is exact on a line and order 2 is not exact on a parabola. Tensors stay in
    the samples' dtype: ``order + 1`` of their size are kept once there were as many samples.
    """

    __slots__ = ("_factors", "_order", "at")

    def __init__(self, order: int = 0) -> None:
        self._order = order
        self._factors: tuple[torch.Tensor, ...] = ()
        self.at: int | None = None
        """The step of the newest sample; None while there is none."""

    def add(self, step: int, sample: torch.Tensor) -> None:
        """Takes the sample itself, which nobody may write to from now on."""
        gap = step - self.at if self.at is not None else 0
        factors = [sample]
        if gap > 0 and geometry(self._factors[0]) == geometry(sample):
            for older in self._factors[: self._order]:
                factors.append((factors[-1] - older) / gap)
        self._factors, self.at = tuple(factors), step

    def continued(self, step: int) -> torch.Tensor:
        """The sequence at a later step. The newest sample itself where no difference is known: not to be written to."""
        assert self.at is not None, "nothing was sampled"
        distance = step - self.at
        result, weight = self._factors[0], 1.0
        for power, factor in enumerate(self._factors[1:], start=1):
            weight *= distance / power
            result = result.add(factor, alpha=weight)
        return result

    def clear(self) -> None:
        """Forget every sample."""
        self._factors, self.at = (), None

    def held(self) -> tuple[torch.Tensor, ...]:
        """The tensors kept now."""
        return self._factors


class ResidualState(CacheState):
    """Keeps the stack residual ``output - hidden_states`` ``[B, L, D]`` and adds it on a skipped step.

    ``order`` 0 adds the newest residual, 1 continues the line through the two newest, and so on; see `Differences`.
    The residual stays in the blocks' dtype.
    """

    def __init__(self, order: int = 0) -> None:
        self._residuals = Differences(order)

    @property
    def kept_at(self) -> int | None:
        """The step whose residual is the newest kept; None while there is none."""
        return self._residuals.at

    def commit(self, step: Step, value: Any, output: torch.Tensor) -> None:
        self._residuals.add(step.index, (output - value).detach())

    def predict(self, step: Step, value: Any) -> torch.Tensor:
        predicted: torch.Tensor = value + self._residuals.continued(step.index)
        return predicted

    def ready(self, value: Any) -> str:
        kept = self._residuals.held()
        if not kept:
            return Reason.NOTHING_CACHED
        return "" if geometry(kept[0]) == geometry(value) else Reason.GEOMETRY_CHANGED

    def held(self) -> Iterable[torch.Tensor]:
        return self._residuals.held()
