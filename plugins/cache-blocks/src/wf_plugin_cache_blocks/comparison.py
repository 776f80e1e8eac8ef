"""How far the inputs of blocks are from former ones: for ``dynamicblock`` where a call is decided by the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch

from wf_core.api import abs_sums, relative_of_sums
from wf_plugin_cache_blocks import fused

if TYPE_CHECKING:
    from wf_plugin_cache_blocks.dynamic import Block

TOGETHER = 2**21
"""Elements of the blocks' inputs that are compared at a time, where that is more than one block's."""


class FormerInputs(NamedTuple):
    """The inputs of blocks that follow each other, to compare with.

    ``inputs`` ``[blocks, B, L, ceil(D / factor)]``, and ``sizes``, their `abs_sums`, ``[blocks, B, n]`` in fp32.
    """

    inputs: torch.Tensor
    sizes: torch.Tensor


class Comparison:
    """The inputs of a call's blocks, compared with those of former calls.

    One block's comparison is a handful of kernels, which for a small model take longer to launch than to run: as many
    blocks are compared together as are small enough to be read again from a device's cache.
    """

    def __init__(self, references: dict[int, FormerInputs], step: int) -> None:
        self._references = references
        self._step = step
        self._waiting: list[tuple[int, Block, torch.Tensor, bool]] = []
        self._moved: list[torch.Tensor] = []
        self._sizes: list[torch.Tensor] = []
        self._elements = 0
        self.over: list[int] = []
        """How many steps each reference was old."""
        self.fused = 0
        """How many blocks were compared by the kernel of `fused`."""
        self.not_fused = ""
        """Why blocks large enough for that kernel were not."""

    def add(self, index: int, block: Block, sample: torch.Tensor, refreshes: bool) -> None:
        """A block's input ``[B, L, ceil(D / factor)]``, which becomes its reference where it ``refreshes`` it."""
        self._waiting.append((index, block, sample, refreshes))
        if sample.numel() * (len(self._waiting) + 1) > TOGETHER:
            self._compare()

    def distances(self) -> torch.Tensor | None:
        """How far each input was from its reference: one fp32 number per block ``[blocks]``, on the device.

        None where no input had a reference.
        """
        self._compare()
        if not self._moved:
            return None
        moved, sizes = torch.cat(self._moved), torch.cat(self._sizes)
        apart = relative_of_sums(moved.flatten(0, 1), sizes.flatten(0, 1), self._elements)
        return apart.view(moved.shape[:2]).amax(1)

    def _compare(self) -> None:
        """Compare what waits, up to the sums."""
        if not self._waiting:
            return
        waiting, self._waiting = self._waiting, []
        first, _, sample, _ = waiting[0]
        former = self._references.get(first)
        if former is not None:
            self._elements = sample[0].numel()
            self._sizes.append(former.sizes)
            self.over += [self._step - block.reference_at for _, block, _, _ in waiting]
        keeps = [refreshes or former is None for _, _, _, refreshes in waiting]
        why_not = fused.why_not(sample) if 2 * sample.numel() > TOGETHER else "small"
        if sample.is_cuda and why_not != "small":
            self.not_fused = why_not
        if not why_not:
            moved, kept = self._fused(sample.detach(), former, keeps[0])
        else:
            moved, kept = self._by_torch([sample.detach() for _, _, sample, _ in waiting], former, keeps)
        if moved is not None:
            self._moved.append(moved)
        self._references[first] = kept
        for (_, block, _, _), taken in zip(waiting, keeps, strict=True):
            if taken:
                block.reference_at = self._step

    def _fused(
        self, sample: torch.Tensor, former: FormerInputs | None, keeps: bool
    ) -> tuple[torch.Tensor | None, FormerInputs]:
        """One block in one pass; what was kept of it is written over."""
        self.fused += 1
        inputs = sample.new_empty((1, *sample.shape)) if former is None else former.inputs
        moved, sizes = fused.compare(sample, inputs[0], compares=former is not None, keeps=keeps)
        kept = former if former is not None and not keeps else FormerInputs(inputs, sizes.unsqueeze(0))
        return None if former is None else moved.unsqueeze(0), kept

    @staticmethod
    def _by_torch(
        samples: list[torch.Tensor], former: FormerInputs | None, keeps: list[bool]
    ) -> tuple[torch.Tensor | None, FormerInputs]:
        inputs = torch.stack(samples)
        kept = FormerInputs(inputs, _sums_of(inputs))
        if former is None:
            return None, kept
        moved = _sums_of(inputs.float() - former.inputs)
        for row, taken in enumerate(keeps):
            if not taken:
                kept.inputs[row].copy_(former.inputs[row])
                kept.sizes[row].copy_(former.sizes[row])
        return moved, kept


def _sums_of(inputs: torch.Tensor) -> torch.Tensor:
    """The `abs_sums` of several blocks' inputs: ``[blocks, B, ...]`` -> ``[blocks, B, n]``."""
    return abs_sums(inputs.flatten(0, 1)).view(*inputs.shape[:2], -1)
