"""cuDNN gives wrong numbers for grouped heads on compute capability 10 (pytorch issue 193893): it never sees them."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from wf_lib_attention.machine import Machine
from wf_plugin_attention_sdpa import operators, recipes


@pytest.fixture
def on(monkeypatch):
    """Every device has this compute capability."""

    def of(*capability):
        monkeypatch.setattr(Machine, "of", classmethod(lambda cls, device: cls(capability, 91501)))

    return of


@pytest.fixture
def seen(monkeypatch):
    """The keywords and the heads (of query and key) that the public function was given."""
    calls, public = [], F.scaled_dot_product_attention

    def spy(q, k, v, mask=None, **given):
        calls.append((q.shape[1], k.shape[1], given))
        return public(q, k, v, mask, **given)

    monkeypatch.setattr(F, "scaled_dot_product_attention", spy)
    return calls


@pytest.mark.parametrize(
    "shape", [None, (17,), (33, 17), (2, 1, 1, 17), (1, 8, 33, 17), (2, 8, 1, 17)], ids=str
)
def test_few_key_heads_are_folded_into_the_queries(
    shape, on, seen, provider, inputs, reference, relative_error
):
    on(10, 0)
    q, k, v = inputs(heads=8, key_heads=2)
    mask = None if shape is None else torch.rand(shape, generator=torch.Generator().manual_seed(3)) > 0.4
    sdpa = provider("sdpa")
    assert relative_error(sdpa.attend(q, k, v, mask), reference(q, k, v, mask)) <= 1e-5
    assert seen == [(2, 2, {})]
    assert sdpa.evidence()["operators"] == {"sdpa:folded": 1}


@pytest.mark.parametrize(
    ("capability", "heads", "key_heads"),
    [((9, 0), 8, 2), ((12, 0), 8, 2), ((10, 0), 16, 8), ((10, 3), 16, 8)],
)
def test_elsewhere_torch_gets_the_groups(capability, heads, key_heads, on, seen, provider, inputs):
    on(*capability)
    provider("sdpa").attend(*inputs(heads=heads, key_heads=key_heads), None)
    assert seen == [(heads, key_heads, {"enable_gqa": True})]


def test_calls_that_do_not_fit_together_are_refused_before_they_are_folded(on, provider, inputs):
    from wf_core.api import Ineligible

    on(10, 0)
    q, k, v = inputs(heads=3, key_heads=2)
    with pytest.raises(Ineligible, match="3 query heads cannot share 2 key heads"):
        provider("sdpa").attend(q, k, v, None)


@pytest.mark.parametrize("key_heads", [1, 2, 4])
def test_the_cudnn_operator_gets_as_many_key_heads_as_query_heads(key_heads, inputs):
    """So that no rule has to refuse grouped heads there."""
    from dataclasses import replace

    from wf_lib_attention.call import Call

    heads = []
    q, k, v = inputs(heads=8, key_heads=key_heads, dtype=torch.float16)
    call = Call.of(q, k, v, None)
    spy = replace(operators.CUDNN, bind=lambda call, scale: lambda q, k, v, b: heads.append(k.shape[1]) or q)
    recipe, steps = recipes.build(spy, call, lambda name: None)
    recipe(q, k, v, None)
    assert heads == [8]
    assert steps == ("key heads repeated",)
    assert (
        operators.CUDNN.why_not(replace(call, device=torch.device("cuda", 0)), Machine((10, 0), 91501)) == ""
    )
