"""Blocks of a session's copy under ``torch.compile``: one unbroken graph, shared by sessions, counted exactly."""

from __future__ import annotations

import pytest
import torch
from torch._dynamo.testing import CompileCounterWithBackend

from support import models
from wf_core import PluginFault
from wf_core.api import AttentionProvider, Ineligible


@pytest.fixture
def counter():
    torch._dynamo.reset()
    yield CompileCounterWithBackend("eager")
    torch._dynamo.reset()


@pytest.fixture(scope="module")
def model():
    return models.p1().transformer


def arguments(model):
    torch.manual_seed(1)
    text = torch.randn(1, 7, model.config.text_dim)
    return {
        "hidden_states": torch.randn(1, model.config.in_channels, 2, 8, 8),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": text,
        "return_dict": False,
    }


@torch.no_grad()
def compiled_calls(host, model, request, counter, calls=2, **session):
    """The last output of some calls of a session whose blocks are compiled, and its report."""
    with host.session(model, request, **session) as opened:
        for block in opened.model.blocks:
            block.compile(backend=counter, fullgraph=True)
        with opened.run(num_inference_steps=calls):
            for _ in range(calls):
                out = opened.model(**arguments(model))[0]
    return out, opened.report


def sites(model):
    return 2 * len(model.blocks)


@pytest.mark.parametrize("backend", ["sdpa", "math", "flex"])
def test_one_graph_for_all_blocks_and_sessions_with_exact_counts(host, model, counter, backend):
    stock = model(**arguments(model))[0]
    for _ in range(2):
        out, report = compiled_calls(host, model, {"attention_backend": backend}, counter)
        assert torch.allclose(out, stock, atol=1e-5)
        evidence = report["effective"][backend]["evidence"]
        assert (evidence["attempts"], evidence["successes"]) == (2 * sites(model), 2 * sites(model))
        assert report["effective"][backend]["state"] == "effective"
    assert counter.frame_count == 1


def test_another_provider_of_the_same_name_is_found_at_the_call(host, model, counter):
    """The graph holds no technique: the second session's own is asked."""
    asked = []

    class Halved(AttentionProvider):
        def __init__(self, factor):
            self.factor = factor

        def attend(self, query, key, value, mask):
            asked.append(self.factor)
            return query * self.factor

    outs = [
        compiled_calls(host, model, {}, counter, calls=1, extra={"toy": Halved(factor)})[0]
        for factor in (0.5, 2.0)
    ]
    assert counter.frame_count == 1
    assert asked == [0.5] * sites(model) + [2.0] * sites(model)
    assert not torch.equal(*outs)


class Picky(AttentionProvider):
    def attend(self, query, key, value, mask):
        raise Ineligible("not today")


def test_an_ineligible_call_is_counted_or_fails_the_run_in_compiled_code_too(host, model, counter):
    stock = model(**arguments(model))[0]
    out, report = compiled_calls(
        host, model, {"on_ineligible": "dense"}, counter, calls=1, extra={"picky": Picky()}
    )
    assert torch.allclose(out, stock, atol=1e-6)
    assert report["fallbacks"] == [
        {"feature": "picky", "seam": "attention", "reason": "not today", "count": sites(model)}
    ]
    with pytest.raises((PluginFault, Ineligible), match="not today"):
        compiled_calls(host, model, {}, counter, calls=1, extra={"picky": Picky()})


def test_the_operator_says_what_comes_out():
    from wf_core.kinds.operators import attend
    from wf_core.kinds.serving import served_by

    class Plain(AttentionProvider):
        dense_when_ineligible = False

        def attend(self, query, key, value, mask):
            return torch.nn.functional.scaled_dot_product_attention(
                query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2), mask
            ).transpose(1, 2)

    from wf_core.api import FeatureCounters

    plain = Plain()
    plain.counters = FeatureCounters("plain")
    q, k = torch.randn(2, 5, 3, 8), torch.randn(2, 7, 3, 8)
    with served_by({"plain": plain}):
        torch.library.opcheck(attend, (q, k, k, None, "plain"), test_utils=("test_schema", "test_faketensor"))
        mask = torch.ones(5, 7, dtype=torch.bool)
        torch.library.opcheck(attend, (q, k, k, mask, "plain"), test_utils=("test_schema", "test_faketensor"))
    with pytest.raises(RuntimeError, match="outside a session"):
        attend(q, k, k, None, "plain")
