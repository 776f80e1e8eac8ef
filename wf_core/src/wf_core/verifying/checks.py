"""What is asked of one output: how far it is from float64, and whether it makes sense at all."""

from __future__ import annotations

from collections.abc import Callable

import torch
from attrs import evolve, frozen

from wf_core.verifying.cases import Inputs
from wf_core.verifying.reference import full

Attend = Callable[[Inputs], torch.Tensor]
FAR = 1e4
"""What is added to the value of a key that nobody attends to; within the range of float16."""
STILL = 1e-2
"""How far the output may move then, relative: a quantised kernel spreads its scale, one that drops the mask is at 1."""


@frozen
class Errors:
    """One output against the reference: relative L2 error, largest difference, and the cosine of both."""

    relative_l2: float
    max_abs: float
    cosine: float


def errors(out: torch.Tensor, exact: torch.Tensor) -> Errors:
    """All three over the whole tensor, in float64."""
    one, other = out.double(), exact
    norm = other.norm()
    cosine = (one * other).sum() / (one.norm() * norm)
    difference = one - other
    return Errors(float(difference.norm() / norm), float(difference.abs().max()), float(cosine))


def problem(inputs: Inputs, out: torch.Tensor, *, as_stock: bool = False) -> str:
    """The first thing that no bound excuses, or "".

    ``as_stock``: a row that attends to nothing may hold anything finite, as in the stock kernel, to which such a
    provider is bit-identical (torch's public function leaves cuDNN's values there).
    """
    if out.shape != inputs.query.shape or out.dtype != inputs.query.dtype:
        wanted = f"{list(inputs.query.shape)} in {inputs.query.dtype}"
        return f"the output is {list(out.shape)} in {out.dtype}, not {wanted}"
    if not torch.isfinite(out).all():
        return "the output is not finite"
    silent = ~out.any(dim=-1)  # [B, Lq, H]
    empty = empty_rows(inputs)
    if (silent & ~empty).any():
        return "a row that attends to something is all zero"
    if (empty & ~silent).any() and not as_stock:
        return "a row that attends to nothing is not zero"
    return ""


def mask_problem(inputs: Inputs, out: torch.Tensor, attend: Attend) -> str:
    """Whether the output moves when the value of a key that every row is masked from is moved far away."""
    if inputs.mask is None:
        return ""
    moved = inputs.value.clone()
    moved[:, -1] += FAR
    empty = empty_rows(inputs)[..., None]
    again, before = (x.masked_fill(empty, 0).double() for x in (attend(evolve(inputs, value=moved)), out))
    change = float((again - before).norm() / before.norm())
    if change <= STILL:
        return ""
    return f"the mask is not honoured: the output moves by {change:.2g} with the value of a masked key"


def empty_rows(inputs: Inputs) -> torch.Tensor:
    """``[B, Lq, H]``: which rows attend to nothing."""
    if inputs.mask is None:
        return torch.zeros(inputs.query.shape[:3], dtype=torch.bool, device=inputs.query.device)
    return ~full(inputs.mask, inputs).any(dim=-1).transpose(1, 2)
