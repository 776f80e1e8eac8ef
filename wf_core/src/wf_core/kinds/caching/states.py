"""What one branch of one expert keeps in a run, and how it predicts from it."""

from __future__ import annotations

import itertools
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

        Where it says skip and `ready` gives a reason against it, or gradients are recorded, `forced` is called and the
        step is computed.
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


def retained(tensor: torch.Tensor) -> torch.Tensor:
    """A tensor to keep, detached: itself, or a copy where it is a view of something larger.

    For what comes out of a block or a branch of one, which nobody writes to: see `Handler`.
    """
    import torch

    if torch.compiler.is_compiling():  # in compiled code a tensor's storage is not known
        return tensor.detach().clone()
    alone = tensor.untyped_storage().nbytes() == tensor.nbytes
    return tensor.detach() if alone else tensor.detach().clone()


class Differences:
    """A sequence of tensors sampled at some steps, continued by finite differences up to ``order``.

    ``F0`` is the newest sample; with ``g`` steps between the two newest, ``F(k+1) = (F(k) - older F(k)) / g``. At
    ``d`` steps after the newest sample the continuation is ``sum F(k) d^k / k!`` (arXiv 2503.06923, section 3.2). One
    gap serves all orders, so that order 1 is exact on a line and order 2 is not exact on a parabola.

    The newest ``order + 1`` samples themselves are kept, in their dtype, and differences taken when something is
    predicted: a step that is computed costs nothing but the memory.
    """

    __slots__ = ("_order", "_samples")

    def __init__(self, order: int = 0) -> None:
        self._order = order
        self._samples: tuple[tuple[int, torch.Tensor], ...] = ()

    @property
    def at(self) -> int | None:
        """The step of the newest sample; None while there is none."""
        return self._samples[0][0] if self._samples else None

    def add(self, step: int, sample: torch.Tensor) -> None:
        """Takes the sample itself, which nobody may write to from now on.

        One that is not later than the newest, or of another geometry, begins the sequence anew.
        """
        older = self._samples[: self._order]
        if older and not (step > older[0][0] and geometry(older[0][1]) == geometry(sample)):
            older = ()
        self._samples = ((step, sample), *older)

    def continued(self, step: int) -> torch.Tensor:
        """The sequence at a later step. The newest sample itself where no difference is known: not to be written to."""
        assert self._samples, "nothing was sampled"
        (newest, result), *older = self._samples
        if not older:
            return result
        at = [newest, *(sampled for sampled, _ in older)]
        first, *others = _weights(at, step - newest)
        before = older[0][1]
        result = before.lerp(result, 1.0 + first)
        for weight, (_, sample) in zip(others, older[1:], strict=True):
            result = result.add(before - sample, alpha=weight)
            before = sample
        return result

    def clear(self) -> None:
        """Forget every sample."""
        self._samples = ()

    def held(self) -> tuple[torch.Tensor, ...]:
        """The tensors kept now, the newest first."""
        return tuple(sample for _, sample in self._samples)


def _weights(at: list[int], distance: int) -> list[float]:
    """What each difference of two neighbouring samples counts in the continuation, the newest first.

    ``at`` are the samples' steps, the newest first. Each ``F(k)``, k >= 1, is a sum of those differences.
    """
    gaps = [newer - older for newer, older in itertools.pairwise(at)]
    factors = [[float(i == j) / gap for j in range(len(gaps))] for i, gap in enumerate(gaps)]
    weights, weight = [0.0] * len(gaps), 1.0
    for power in range(1, len(at)):
        weight *= distance / power
        weights = [total + weight * part for total, part in zip(weights, factors[0], strict=True)]
        factors = [
            [(newer - older) / gap for newer, older in zip(*pair, strict=True)]
            for gap, pair in zip(gaps, itertools.pairwise(factors), strict=False)
        ]
    return weights


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
        residuals = self._residuals.held()
        if not residuals:
            return Reason.NOTHING_CACHED
        return "" if geometry(residuals[0]) == geometry(value) else Reason.GEOMETRY_CHANGED

    def held(self) -> Iterable[torch.Tensor]:
        return self._residuals.held()
