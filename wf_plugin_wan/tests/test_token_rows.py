"""Per-token timesteps with few distinct values: the time embedding computed once per value, by a claim of its seam."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from wf_core.api import TokenRows


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=str)
def case(request: pytest.FixtureRequest, tiny: SimpleNamespace) -> SimpleNamespace:
    model, call = tiny.model("ti2v", request.param), tiny.call("ti2v", request.param)
    return SimpleNamespace(model=model, call=call, stock=model(**call)[0])


def distinct(inner: Any, site: Any, timestep: torch.Tensor) -> Any:
    """Two rows instead of one for each token."""
    index = (timestep != timestep[:, :1]).long()
    temb, proj = inner(torch.stack((timestep[:, 0], timestep[:, -1]), 1))
    return TokenRows(temb, index), TokenRows(proj, index)


def run(opened: Any, call: dict[str, Any]) -> torch.Tensor:
    with opened.run():
        out: torch.Tensor = opened.components["transformer"](**call)[0]
    return out


def test_rows_give_what_tokens_give(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(case.model, claims={"time_embedding": distinct})
    assert torch.allclose(run(opened, case.call), case.stock, rtol=1e-5, atol=1e-5)


def test_other_claims_of_the_blocks_get_tensors(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(
        case.model, "norm_modulate", "gated_residual", "modulation", claims={"time_embedding": distinct}
    )
    assert torch.allclose(run(opened, case.call), case.stock, rtol=1e-5, atol=1e-5)
    tokens = case.call["timestep"].shape[1]
    gates = [shapes[2] for site, shapes in opened.seen.of("gated_residual") if site.role == "self"]
    assert gates == [(1, tokens, tiny.width)] * 2
    ((_, signals),) = opened.seen.of("modulation")
    assert signals == ((1, tokens, tiny.width), (1, tokens, 6, tiny.width))


def test_the_claim_that_made_them_gets_the_rows(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    kinds = []

    def look(inner: Any, site: Any, *args: Any) -> Any:
        kinds.append((site.seam, site.role, type(args[-1]).__name__))
        return inner(*args)

    claims = {"time_embedding": distinct, "norm_modulate": look, "gated_residual": look}
    opened = tiny.open(case.model, claims=claims, owner="mine")
    assert torch.allclose(run(opened, case.call), case.stock, rtol=1e-5, atol=1e-5)
    assert ("norm_modulate", "self", "TokenRows") in kinds
    assert ("gated_residual", "ffn", "TokenRows") in kinds
    assert ("gated_residual", "cross", "NoneType") in kinds
