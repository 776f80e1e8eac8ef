"""Timesteps of frames: by a claim of the time embedding, the layers of the norms compute each distinct row once."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from support.counting import graphs_of_compiled
from wf_core.api import TokenRows

KINDS = ("p1", "p2", "p2.5", "transfer")
FRAMES, TOKENS = 2, 12
PER_FRAME = torch.tensor([0.0001, 0.7]).view(1, 1, FRAMES, 1, 1)


@pytest.fixture(
    scope="module",
    params=[(kind, dtype) for kind in KINDS for dtype in (torch.float32, torch.bfloat16)],
    ids=str,
)
def case(request: pytest.FixtureRequest, tiny: SimpleNamespace) -> SimpleNamespace:
    """A model of each generation, given a timestep for each frame; Predict1 is not by its own pipelines."""
    kind, dtype = request.param
    model, call = tiny.model(kind, dtype), {**tiny.call(kind, dtype), "timestep": PER_FRAME.to(dtype)}
    return SimpleNamespace(model=model, dtype=dtype, call=call, stock=model(**call)[0])


def distinct(inner: Any, site: Any, timestep: torch.Tensor) -> Any:
    """The rows of the first and the last frame, and which frames have which."""
    index = (timestep != timestep[:, :1]).long()
    temb, projection = inner(timestep[:, [0, -1]])
    return TokenRows(temb, index), TokenRows(projection, index)


def indexed_apart(inner: Any, site: Any, timestep: torch.Tensor) -> Any:
    """The same with the rows of the second in another order."""
    temb, projection = distinct(inner, site, timestep)
    return temb, TokenRows(projection.values.flip(1), 1 - projection.index)


def run(opened: Any, call: dict[str, Any]) -> torch.Tensor:
    with opened.run():
        out: torch.Tensor = opened.components["transformer"](**call)[0]
    return out


def rows_seen(root: Any) -> dict[str, int]:
    """Rows that each first layer of a norm is given, by its path, noted while the root computes."""
    seen: dict[str, int] = {}

    def note(path: str) -> Any:
        return lambda _, args: seen.__setitem__(path, args[0].numel() // args[0].shape[-1])

    for path, module in root.named_modules():
        if path.endswith("linear_1") and "norm" in path:
            module.register_forward_pre_hook(note(path))
    return seen


def close(case: SimpleNamespace, ours: torch.Tensor) -> bool:
    """Equal but for products that a library may sum in another order for fewer rows."""
    assert ours.dtype == case.dtype
    bound = 1e-5 if case.dtype == torch.float32 else 1e-2
    return bool((ours - case.stock).norm() <= bound * case.stock.norm())


def test_rows_give_what_tokens_give_and_each_is_computed_once(
    case: SimpleNamespace, tiny: SimpleNamespace
) -> None:
    opened = tiny.open(case.model, claims={"time_embedding": distinct})
    seen = rows_seen(opened.components["transformer"])
    assert close(case, run(opened, case.call))
    assert set(seen.values()) == {FRAMES}
    assert len(seen) == 3 * len(case.model.transformer_blocks) + 1, "each sub-layer, and the head"
    without = tiny.open(case.model, "norm_modulate")
    seen = rows_seen(without.components["transformer"])
    assert torch.equal(run(without, case.call), case.stock)
    assert set(seen.values()) == {TOKENS}


def test_other_claims_of_the_blocks_get_tensors(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    claims = {"time_embedding": distinct}
    opened = tiny.open(case.model, "norm_modulate", "gated_residual", "modulation", claims=claims)
    assert close(case, run(opened, case.call))
    width = tiny.width
    for seam in ("norm_modulate", "gated_residual"):
        assert {shapes[2] for _, shapes in opened.seen.of(seam)} == {(1, TOKENS, width)}
    ((_, signals),) = opened.seen.of("modulation")
    assert signals == ((1, TOKENS, width), (1, TOKENS, 3, width))


def test_the_claim_that_made_them_gets_the_rows(case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    kinds = set()

    def look(inner: Any, site: Any, *args: Any) -> Any:
        kinds.add((site.seam, site.role, type(args[-1]).__name__, tuple(args[-1].shape)))
        return inner(*args)

    claims = {"time_embedding": distinct, "norm_modulate": look, "gated_residual": look}
    opened = tiny.open(case.model, claims=claims, owner="mine")
    assert close(case, run(opened, case.call))
    assert kinds == {
        (seam, role, "TokenRows", (1, TOKENS, tiny.width))
        for seam in ("norm_modulate", "gated_residual")
        for role in ("self", "cross", "ffn")
    }


def test_rows_of_two_indices_are_written_out(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("p2"), tiny.call("p2")
    opened = tiny.open(model, claims={"time_embedding": indexed_apart})
    seen = rows_seen(opened.components["transformer"])
    assert torch.allclose(run(opened, call), model(**call)[0], rtol=1e-5, atol=1e-5)
    assert set(seen.values()) == {TOKENS}


@pytest.mark.parametrize("kind", KINDS)
def test_one_timestep_of_a_sample_is_one_row_as_in_stock(kind: str, tiny: SimpleNamespace) -> None:
    given = []

    def look(inner: Any, site: Any, timestep: torch.Tensor) -> Any:
        given.append(tuple(timestep.shape))
        return inner(timestep)

    model, call = tiny.model(kind), {**tiny.call(kind), "timestep": torch.tensor([0.7])}
    opened = tiny.open(model, claims={"time_embedding": look})
    seen = rows_seen(opened.components["transformer"])
    assert torch.equal(run(opened, call), model(**call)[0])
    assert (given, set(seen.values())) == ([(1,)], {1})


@pytest.mark.parametrize("shape", [(1, 2), (1, 1, 3, 1, 1), (2, 1, 2, 1, 1)])
def test_timesteps_of_another_shape_are_refused_before_the_seam(
    shape: tuple[int, ...], tiny: SimpleNamespace
) -> None:
    opened = tiny.open(tiny.model("p2"), "time_embedding")
    with pytest.raises(ValueError, match=r"timestep must be \[B\] or \[B, 1, T, 1, 1\]"):
        run(opened, {**tiny.call("p2"), "timestep": torch.zeros(shape)})
    assert not opened.seen.calls


def test_two_samples_have_rows_of_their_own(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("p2"), tiny.call("p2")
    for name in ("hidden_states", "encoder_hidden_states", "condition_mask"):
        call[name] = torch.cat([call[name], call[name] / 2])
    call["timestep"] = torch.tensor([[0.0001, 0.7], [0.3, 0.2]]).view(2, 1, FRAMES, 1, 1)
    opened = tiny.open(model, claims={"time_embedding": distinct})
    seen = rows_seen(opened.components["transformer"])
    assert torch.allclose(run(opened, call), model(**call)[0], rtol=1e-5, atol=1e-5)
    assert set(seen.values()) == {2 * FRAMES}


def test_compiled_blocks_take_rows_in_one_graph(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("p2"), tiny.call("p2")

    def through(inner: Any, site: Any, *args: Any) -> Any:
        return inner(*args)

    claims = {"time_embedding": distinct, "norm_modulate": through, "gated_residual": through}
    opened = tiny.open(model, claims=claims, owner="mine")
    graphs = graphs_of_compiled(opened.components["transformer"].transformer_blocks)
    eager = run(tiny.open(model, claims=claims, owner="mine"), call)
    assert torch.equal(run(opened, call), eager)
    assert len(graphs) == 1


@pytest.mark.parametrize("kind", ["forward", "forward_pre"])
def test_a_hook_on_the_norm_of_the_head_runs(kind: str, case: SimpleNamespace, tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.copy(case.model), "stack", claims={"time_embedding": distinct})
    seen: list[Any] = []
    norm = opened.components["transformer"].norm_out
    getattr(norm, f"register_{kind}_hook")(lambda *given: seen.append(given))
    ours = run(opened, case.call)
    assert len(seen) == 1 and seen[0][1][0].shape[1] == TOKENS
    assert float((ours - case.stock).norm() / case.stock.norm()) <= (
        1e-6 if case.dtype is torch.float32 else 2e-2
    )
