"""Which tokens share a timestep: found without waiting for the device at every step.

A model with a timestep per token (Wan 2.2 TI2V) has few different ones: 0 for the frame that is given, the step's own
for the rest. Every row of ``timestep`` ``[B, L]`` is described by the values of its first and last token, and by which
of the two each token has.
"""

from __future__ import annotations

from collections import deque

import torch

FAILED = (
    "fused-modulation: the timesteps of a later step were not those of two groups of tokens, as at the first step, so "
    "that the result of this run is wrong; leave out fused_modulation for this model."
)


class TokenTimes:
    """The timesteps of one run. The first call looks, and waits for the device once; later ones check behind it."""

    def __init__(self) -> None:
        self._distinct = 0
        self._pending: deque[tuple[torch.Tensor, torch.cuda.Event | None]] = deque()

    def reduce(self, timestep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor] | None:
        """``[B, L]`` -> the distinct values ``[B, N]``, N at most 2, and the one of each token, int64 ``[B, L]``.

        None if the first call of the run had rows with more than two values. Raises ``RuntimeError`` as soon as an
        earlier call of the run is known to have differed from the first.
        """
        self._look(wait=False)
        ends = timestep[:, [0, -1]] if timestep.shape[1] > 1 else timestep[:, :1].expand(-1, 2)
        first, last = ends[:, :1], ends[:, 1:]
        at_last = timestep == last
        uniform = at_last.all()
        paired = (at_last | (timestep == first)).all()
        if not self._distinct:
            one, two = torch.stack([uniform, paired]).tolist()
            self._distinct = 1 if one else 2 if two else 3
        elif self._distinct < 3:
            self._remember(uniform if self._distinct == 1 else paired)
        if self._distinct > 2:
            return None
        if self._distinct == 1:
            return first, torch.zeros_like(at_last, dtype=torch.int64)
        return ends, at_last.to(torch.int64)

    def end(self) -> None:
        """Look at what has not been looked at, and forget the run. Raises as ``reduce``."""
        try:
            self._look(wait=True)
        finally:
            self._distinct = 0
            self._pending.clear()

    def _remember(self, held: torch.Tensor) -> None:
        """Copy the answer to the host, to be read when the device has come that far."""
        if held.device.type != "cuda":
            self._pending.append((held, None))
            return
        answer = torch.empty((), dtype=held.dtype, pin_memory=True)
        answer.copy_(held, non_blocking=True)
        event = torch.cuda.Event()
        event.record(torch.cuda.current_stream(held.device))
        self._pending.append((answer, event))

    def _look(self, *, wait: bool) -> None:
        while self._pending:
            answer, event = self._pending[0]
            if event is not None and not event.query():
                if not wait:
                    return
                event.synchronize()
            self._pending.popleft()
            if not answer.item():
                self._pending.clear()
                raise RuntimeError(FAILED)
