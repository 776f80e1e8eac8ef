"""Attention in float64 by its definition, in pieces of query rows: the full score matrix is never held."""

from __future__ import annotations

import torch

from wf_core.verifying.cases import Inputs

SCORE_BYTES = 1 << 28


def attention(inputs: Inputs) -> torch.Tensor:
    """``softmax(q k^T / sqrt(D)) v`` ``[B, Lq, H, D]`` in float64; rows that attend to nothing are zeros.

    Query head ``h`` uses key head ``h // (H / Hk)`` (Ainslie et al., GQA, arXiv 2305.13245).
    """
    query = inputs.query.transpose(1, 2)
    group = inputs.query.shape[2] // inputs.key.shape[2]
    key, value = (
        x.transpose(1, 2).double().repeat_interleave(group, dim=1) for x in (inputs.key, inputs.value)
    )
    mask = None if inputs.mask is None else full(inputs.mask, inputs)
    out = torch.empty(query.shape, dtype=torch.float64, device=query.device)
    rows = max(1, SCORE_BYTES // (8 * query.shape[0] * query.shape[1] * key.shape[2]))
    for start in range(0, query.shape[2], rows):
        piece = slice(start, start + rows)
        scores = query[:, :, piece].double() @ key.transpose(-1, -2) * query.shape[-1] ** -0.5
        if mask is not None:
            scores = scores.masked_fill(~mask[:, :, piece], -torch.inf)
        out[:, :, piece] = torch.softmax(scores, dim=-1).nan_to_num() @ value
    return out.transpose(1, 2)


def full(mask: torch.Tensor, inputs: Inputs) -> torch.Tensor:
    """The mask as a view ``[B, H, Lq, Lk]``."""
    case = inputs.case
    return mask.expand(case.batch, case.heads, case.lq, case.lk)
