"""Modulation rows on their way to the seams of a block: as they come, or written out for every token."""

from __future__ import annotations

from collections.abc import Callable

import torch

from wf_core.api import Seams, TokenRows, dense

Row = torch.Tensor | TokenRows
"""Shift, scale or gate: ``[B, 1, D]``, ``[B, L, D]``, or the rows that tokens share."""
Pass = Callable[[Row], Row]
"""What is done to a row before it goes to a seam: nothing, or written out."""


def unchanged(row: Row) -> Row:
    """The row as it is."""
    return row


def rows_as_they_come(seams: Seams) -> Pass:
    """``TokenRows`` reach the claims of a block's norms and residuals only if the features that made them are alone
    there; others get tensors.
    """
    users = {*seams.claimants("norm_modulate"), *seams.claimants("gated_residual")}
    return unchanged if users <= set(seams.claimants("time_embedding")) else dense
