"""A session with nothing installed is the stock pipeline, bit for bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support import models

DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("recipe", models.RECIPES)
def test_an_empty_session_is_bit_identical_to_the_stock_pipeline(host, recipe, dtype):
    pipe, arguments = models.RECIPES[recipe](DTYPES[dtype])
    stock = pipe(**models.fresh(arguments)).frames
    stock_latents = pipe(**{**models.fresh(arguments), "output_type": "latent"}).frames
    with host.session(pipe, {}, verify_contents=True) as session:
        assert type(session.pipe).__name__ == type(pipe).__name__
        assert isinstance(session.pipe, type(pipe))
        ours = session.pipe(**models.fresh(arguments)).frames
        latents = session.pipe(**{**models.fresh(arguments), "output_type": "latent"}).frames
        calls = sum(session.report["steps"]["calls"].values())
    assert np.array_equal(stock, ours)
    assert torch.equal(stock_latents, latents)
    assert float(latents.float().std()) > 0.1, "the comparison must be able to fail"
    assert (
        calls == len(session.report["steps"]["calls"]) * session.report["steps"]["total"]
        or recipe == "two_experts"
    )


def test_the_source_of_identity_is_named_for_each_pipeline(host):
    sources = {}
    for recipe, make in models.RECIPES.items():
        pipe, arguments = make()
        with host.session(pipe, {}) as session:
            session.pipe(**{**arguments, "output_type": "latent"})
            sources[recipe] = session.report["identity"]
    assert sources == {
        "t2v": "context",
        "two_experts": "context",
        "ti2v": "context",
        "i2v": "context-name",
        "v2v": "ordinal",
        "vace": "context-name",
    }
