"""The time signals from the weights equal what the model itself computes."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

STEPS = (999.0, 500.5, 3.0)


@pytest.mark.parametrize("kind", ["t2v", "i2v", "vace"])
def test_signals_equal_the_models_own_in_fp32(kind: str, tiny: SimpleNamespace) -> None:
    opened = tiny.open(
        tiny.model(kind), claims={"modulation": lambda inner, site, *signals: live.append(signals)}
    )
    live: list[tuple[torch.Tensor, torch.Tensor]] = []
    root = opened.components["transformer"]
    for t in STEPS:
        with opened.run():
            root(**{**tiny.call(kind), "timestep": torch.tensor([t])})
    signals = opened.family.modulation(root, STEPS)
    assert signals["e"].shape == (3, tiny.width)
    assert signals["e0"].shape == (3, 6 * tiny.width)
    for i, (temb, timestep_proj) in enumerate(live):
        torch.testing.assert_close(signals["e"][i], temb[0], rtol=0, atol=1e-6 * float(temb.abs().max()))
        own = timestep_proj[0].flatten()
        torch.testing.assert_close(signals["e0"][i], own, rtol=0, atol=1e-6 * float(own.abs().max()))


def test_signals_of_a_bf16_model_are_fp32_and_unrounded(tiny: SimpleNamespace) -> None:
    """The stock forward rounds temb to bf16 before the projection; the signals do not."""
    model = tiny.model("t2v", torch.bfloat16)
    family = tiny.open(model).family
    signals = family.modulation(model, STEPS)
    exact = tiny.model("t2v", torch.bfloat16)
    exact.condition_embedder.double()
    e = exact.condition_embedder.time_embedder(
        exact.condition_embedder.timesteps_proj(torch.tensor(STEPS)).double()
    )
    e0 = exact.condition_embedder.time_proj(torch.nn.functional.silu(e))
    assert signals["e"].dtype == signals["e0"].dtype == torch.float32
    torch.testing.assert_close(signals["e"].double(), e, rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(signals["e0"].double(), e0, rtol=1e-5, atol=1e-4)
    assert not torch.allclose(signals["e"], e.bfloat16().float(), rtol=1e-5, atol=1e-4)


def test_floats_and_tensors_give_the_same_even_under_autocast(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v")
    family = tiny.open(model).family
    plain = family.modulation(model, STEPS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        given = family.modulation(model, torch.tensor(STEPS))
    assert torch.equal(plain["e"], given["e"])
    assert torch.equal(plain["e0"], given["e0"])
    assert not plain["e0"].requires_grad
