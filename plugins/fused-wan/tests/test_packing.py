"""Packed projections: equal to the three layers, counted, and left alone where they cannot be packed."""

from __future__ import annotations

import pytest
import torch
from fused_by_hand import ready
from torch import nn

from support import models
from wf_core import Refused
from wf_core.testing import host_of
from wf_plugin_fused_wan.packing import GRADIENTS, INFERENCE, MOVED, PackedProjections, packed_projection
from wf_plugin_fused_wan.projections import self_attentions, why_not

ROWS = 2 * 11


class Attention(nn.Module):
    """What the technique looks at of an attention."""

    fused_projections = False
    is_cross_attention = False

    def __init__(self, dim=12, bias=True):
        super().__init__()
        self.to_q, self.to_k, self.to_v = (nn.Linear(dim, dim, bias=bias) for _ in range(3))


def stock(attn, x):
    return attn.to_q(x), attn.to_k(x), attn.to_v(x)


def no_stock(attn, x):
    raise AssertionError("the stock projections were computed")


def project(technique, attn, x, inner=no_stock):
    return technique.handlers()["qkv"](inner, None, attn, x)


def same(ours, theirs):
    return all(torch.equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.fixture(autouse=True)
def seeded_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def x():
    return torch.randn(2, 11, 12)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("strategy", "products"), [("packed", 1), ("split", 3)])
def test_both_strategies_give_what_the_layers_give(x, strategy, products, bias):
    attn, technique = Attention(bias=bias), ready(PackedProjections(strategy, 8192))
    for _ in range(2):
        assert same(project(technique, attn, x), stock(attn, x))
    assert technique.counters.seen == {
        "fused_blocks": 1,
        f"{strategy}_calls": 2,
        "projections": 2 * products,
    }
    assert technique.evidence() == {
        "strategy": strategy,
        "rows": {strategy: [ROWS, ROWS]},
        "packed_bytes": 4 * 3 * (12 * 12 + 12 * bias),
    }


@pytest.mark.parametrize(("threshold", "packs"), [(ROWS + 1, True), (ROWS, False), (1, False)])
def test_auto_packs_below_the_threshold_and_nothing_from_it_on(x, threshold, packs):
    attn, technique = Attention(), ready(PackedProjections("auto", threshold))
    assert same(project(technique, attn, x, no_stock if packs else stock), stock(attn, x))
    assert bool(technique.variants.built) == packs
    assert technique.counters.seen["fused_blocks"] == technique.counters.seen["projections"] == int(packs)
    assert technique.counters.seen["packed_calls" if packs else "stock_calls"] == 1
    assert technique.evidence()["rows"] == {"packed" if packs else "stock": [ROWS, ROWS]}


def test_every_block_has_a_weight_of_its_own(x):
    technique, attentions = ready(PackedProjections("packed")), [Attention() for _ in range(3)]
    for attn in (*attentions, *attentions):
        assert same(project(technique, attn, x), stock(attn, x))
    assert technique.counters.seen["fused_blocks"] == len(technique.variants.built) == 3


class Lora(nn.Linear):
    pass


class Quantised(torch.Tensor):
    pass


def _replaced(name, layer):
    return lambda attn: setattr(attn, name, layer)


CANNOT = {
    "fused already": lambda attn: setattr(attn, "fused_projections", True),
    "no plain linear layer": _replaced("to_k", Lora(12, 12)),
    "no plain tensor": lambda attn: setattr(
        attn.to_v, "weight", nn.Parameter(torch.randn(12, 12).as_subclass(Quantised), requires_grad=False)
    ),
    "differ in size": _replaced("to_k", nn.Linear(12, 6)),
    "dtype": _replaced("to_v", nn.Linear(12, 12, dtype=torch.float64)),
    "bias": _replaced("to_q", nn.Linear(12, 12, bias=False)),
    "has hooks": lambda attn: attn.to_q.register_forward_hook(lambda layer, args, out: out),
    "has hooks, which": lambda attn: setattr(attn.to_k, "forward", lambda x: x),
    "hooks, which": lambda attn: attn.to_v.register_forward_pre_hook(lambda layer, args: None),
}


@pytest.mark.parametrize("word", CANNOT)
def test_what_cannot_be_packed_is_left_to_the_stock_code_and_told(x, word):
    attn, technique = Attention(), ready(PackedProjections("packed"))
    assert why_not(attn) == ""
    CANNOT[word](attn)
    marker = object()
    assert project(technique, attn, x, lambda attn, x: marker) is marker
    ((_, reason),) = technique.counters.reasons
    assert word.replace("no plain tensor", "not a plain tensor") in reason
    assert not technique.counters.seen and not technique.variants.built


@pytest.mark.parametrize(
    "change",
    [
        lambda layer: layer.weight.mul_(2),
        lambda layer: layer.bias.add_(1),
        lambda layer: setattr(layer.weight, "data", layer.weight.data * 2),
    ],
    ids=["weight written", "bias written", "weight replaced"],
)
@pytest.mark.parametrize("strategy", ["packed", "split"])
def test_layers_that_changed_are_not_computed_from_the_old_weight(x, strategy, change):
    attn, technique = Attention(), ready(PackedProjections(strategy))
    project(technique, attn, x)
    change(attn.to_k)
    assert same(project(technique, attn, x), stock(attn, x))
    assert technique.counters.reasons == {("qkv", MOVED): 1}
    assert technique.counters.seen[f"{strategy}_calls"] == 1


def test_weights_of_inference_mode_are_not_packed(x):
    with torch.inference_mode():
        attn, technique = Attention(), ready(PackedProjections("packed"))
        assert same(project(technique, attn, x), stock(attn, x))
    assert technique.counters.reasons == {("qkv", INFERENCE): 1}


def test_gradients_reach_the_layers(x):
    attn, technique = Attention(), ready(PackedProjections("packed"))
    with torch.enable_grad():
        sum(part.sum() for part in project(technique, attn, x, stock)).backward()
    assert attn.to_k.weight.grad is not None
    assert technique.counters.reasons == {("qkv", GRADIENTS): 1}


def test_only_self_attentions_are_looked_at():
    model = models.w()
    found = list(self_attentions({"transformer": model, "scheduler": object()}))
    assert found == [block.attn1 for block in model.blocks]


def test_the_operators_describe_what_they_return():
    attn = Attention()
    weights = [attn.to_q.weight, attn.to_k.weight, attn.to_v.weight]
    out = packed_projection(torch.empty(2, 11, 12, device="meta"), [w.to("meta") for w in weights], [])
    assert out.shape == (2, 11, 36) and out.is_contiguous()


# --- sessions -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host():
    return host_of("wf_plugin_fused_wan", "wf_plugin_wan")


@pytest.fixture(scope="module", params=["t2v", "two_experts", "ti2v", "i2v", "vace"])
def recipe(request):
    pipe, arguments = models.RECIPES[request.param]()
    arguments = {**arguments, "num_inference_steps": 2, "output_type": "latent"}
    return pipe, arguments, pipe(**models.fresh(arguments)).frames


def blocks(pipe):
    roots = [root for name in ("transformer", "transformer_2") if (root := getattr(pipe, name, None))]
    return sum(len(list(self_attentions({"transformer": root}))) for root in roots)


@pytest.mark.parametrize("strategy", ["packed", "split"])
def test_a_clip_is_the_plain_clip(host, recipe, strategy):
    pipe, arguments, plain = recipe
    with host.session(pipe, {"fuse_qkv": True, "qkv_strategy": strategy}, verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        (found,) = session.report["effective"].values()
    assert torch.equal(ours, plain)
    assert found["state"] == "effective" and not session.report["fallbacks"]
    evidence = found["evidence"]
    assert evidence["fused_blocks"] == blocks(pipe)
    calls = sum(session.report["steps"]["calls"].values())
    each = 1 if strategy == "packed" else 3
    assert evidence["projections"] == each * evidence[f"{strategy}_calls"]
    experts = 1 + (getattr(pipe, "transformer_2", None) is not None)
    assert evidence[f"{strategy}_calls"] == calls * blocks(pipe) / experts


def test_at_the_threshold_auto_is_stock_and_inert(host):
    pipe, arguments = models.p1(), models.call(num_inference_steps=1)
    with host.session(pipe, {"fuse_qkv": True, "qkv_split_threshold": 12}) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
        (found,) = session.report["effective"].values()
        assert host.variants.describe() == ()
    assert torch.equal(ours, pipe(**models.fresh(arguments)).frames)
    assert found["state"] == "inert"
    assert found["evidence"]["rows"] == {"stock": [12, 12]} and found["evidence"]["packed_bytes"] == 0


def test_sessions_on_one_base_share_the_packed_weights(host):
    pipe, arguments = models.p1(), models.call(num_inference_steps=1)
    with host.session(pipe, {"fuse_qkv": True}) as one, host.session(pipe, {"fuse_qkv": True}) as two:
        one.pipe(**models.fresh(arguments))
        two.pipe(**models.fresh(arguments))
        kept = host.variants.describe()
        assert [entry["sessions"] for entry in kept] == [2] * 3
    assert host.variants.describe() == ()


def test_some_fused_projections_are_fallbacks_and_all_of_them_a_refusal(host):
    arguments = models.call(num_inference_steps=1)
    pipe = models.p1()
    pipe.transformer.blocks[1].attn1.fuse_projections()
    plain = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, {"fuse_qkv": True}) as session:
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, plain)
        (found,) = session.report["effective"].values()
        (fallback,) = session.report["fallbacks"]
    assert found["state"] == "partial" and found["evidence"]["fused_blocks"] == 2
    assert fallback["count"] == 2 and "fused already" in fallback["reason"]
    for block in pipe.transformer.blocks:
        block.attn1.fuse_projections()
    with host.session(pipe, {"fuse_qkv": True}) as session:
        with pytest.raises(Refused, match="none of the 3 self-attentions can be packed"):
            session.pipe(**models.fresh(arguments))
    with host.session(models.p1(), {"fuse_qkv": True}) as session:  # another model is no worse for it
        session.pipe(**models.fresh(arguments))


@pytest.mark.parametrize("strategy", ["packed", "split"])
def test_compiled_blocks_share_one_graph_and_are_counted(host, strategy):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    base = models.w(num_layers=3)
    inputs = models.w_inputs()
    plain = base(**inputs)[0]
    with host.session(base, {"fuse_qkv": True, "qkv_strategy": strategy}) as session:
        for block in session.model.blocks:
            block.compile(backend="eager", fullgraph=True)
        with session.run(num_inference_steps=2):
            ours = [session.model(**inputs)[0] for _ in range(2)]
        evidence = session.report["effective"]["fuse-qkv"]["evidence"]
    assert all(torch.equal(out, plain) for out in ours)
    assert evidence["fused_blocks"] == 3 and evidence[f"{strategy}_calls"] == 6
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
