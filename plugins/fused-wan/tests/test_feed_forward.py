"""``fused-gelu``: which feed-forwards it takes, what it makes of them, and how it counts.

A torch form stands in for the kernel, which needs a CUDA device.
"""

from __future__ import annotations

import pytest
import torch
from diffusers.models.attention import FeedForward
from fused_by_hand import ready
from torch import nn

from support import models
from wf_core import Refused
from wf_core.api import Ineligible, Site
from wf_core.testing import host_of
from wf_plugin_fused_wan import feed_forward
from wf_plugin_fused_wan.feed_forward import FusedGelu, activated, foreign, ineligible, reference

DTYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def seeded_without_gradients():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def served(monkeypatch):
    """As if every call were on a CUDA device in bfloat16."""
    monkeypatch.setattr(feed_forward, "ineligible", lambda x, weight, bias: "")
    monkeypatch.setattr(feed_forward, "launch", reference)


def made(dtype=torch.float32, **changes):
    """As `WanTransformerBlock` makes it."""
    return (
        FeedForward(12, **{"inner_dim": 40, "activation_fn": "gelu-approximate", **changes}).to(dtype).eval()
    )


def call(technique, module, x):
    def no_stock(module, x):
        raise AssertionError("the stock feed-forward was computed")

    return technique.feed_forward(no_stock, None, module, x)


@pytest.mark.parametrize("dtype", DTYPES)
def test_the_reference_is_bit_for_bit_the_beginning_of_a_feed_forward(dtype):
    module, x = made(dtype), torch.randn(2, 7, 12).to(dtype)
    layer = module.net[0].proj
    assert torch.equal(reference(x, layer.weight, layer.bias), module.net[0](x))


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_feed_forward_is_served_whole_and_counted(dtype):
    module, technique = made(dtype, final_dropout=True), ready(FusedGelu())
    x = torch.randn(2, 7, 12).to(dtype)
    for _ in range(3):
        assert torch.equal(call(technique, module, x), module(x))
    assert technique.counters.seen == {"calls": 3}


@pytest.mark.usefixtures("served")
def test_layers_after_the_gelu_are_called_with_their_hooks():
    module, technique, seen = made(), ready(FusedGelu()), []
    module.net[2].register_forward_hook(lambda layer, args, out: seen.append(out.shape))
    call(technique, module, torch.randn(1, 3, 12))
    assert seen == [(1, 3, 12)]


class Lora(nn.Linear):
    pass


class FeedForwardOfMine(FeedForward):
    pass


def _hook(pick):
    def change(module):
        pick(module).register_forward_pre_hook(lambda layer, args: None)
        return module

    return change


def _with(change):
    def changed(module):
        change(module)
        return module

    return changed


FOREIGN = {
    "is a Linear, not diffusers' FeedForward": lambda module: nn.Linear(12, 12),
    "is a FeedForwardOfMine": lambda module: FeedForwardOfMine(12, activation_fn="gelu-approximate"),
    "begins with a GELU, and only tanh": lambda module: made(activation_fn="gelu"),
    "begins with a GEGLU": lambda module: made(activation_fn="geglu"),
    "before the GELU has no bias": lambda module: made(bias=False),
    "before the GELU is no plain linear layer": _with(lambda module: setattr(module.net[0], "proj", Lora(12, 40))),
    "before the GELU has hooks": _hook(lambda module: module.net[0].proj),
    "or its GELU has hooks, which": _hook(lambda module: module.net[0]),
    "feed-forward or its GELU has hooks": _hook(lambda module: module),
    "or its GELU has hooks": _with(lambda module: setattr(module, "forward", lambda x: x)),
}  # fmt: skip


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("said", FOREIGN)
def test_another_feed_forward_is_refused_with_the_reason(said):
    module = FOREIGN[said](made())
    assert said in foreign(module)
    with pytest.raises(Ineligible, match=r"feed-forward|GELU"):
        call(ready(FusedGelu()), module, torch.randn(1, 3, 12))


def test_stock_feed_forwards_are_not_foreign():
    blocks = models.RECIPES["i2v"]()[0].transformer.blocks
    assert len(blocks) > 0 and not any(foreign(block.ffn) for block in blocks)


def test_the_feed_forwards_are_those_of_the_seams_sites():
    """A family may have others, which are behind no seam."""
    model, technique = models.hy(), ready(FusedGelu())
    technique.prepare({"transformer": model, "vae": None})
    for name in ("ff", "ff_context"):
        assert technique.wants(Site("feed_forward", "transformer", f"transformer_blocks.1.{name}"))
    assert not list(technique.check(None))
    model.transformer_blocks[1].ff_context.register_forward_hook(lambda *args: None)
    (reason,) = technique.check(None)
    assert reason.startswith("1 of 2 feed-forwards cannot be fused: the feed-forward or its GELU has hooks")
    technique.close()
    assert not list(technique.check(None))


HALF = torch.zeros(2, 3, 12, dtype=torch.bfloat16)


class OnCuda(torch.Tensor):
    """A tensor that says it is on a CUDA device."""

    is_cuda = True


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({}, ""),
        ({"x": HALF}, "for CUDA devices, and this call is on cpu"),
        ({"weight": torch.empty(40, 12, device="meta")}, "and the weights are on meta"),
        ({"weight": torch.empty(40, 12)}, "torch.bfloat16, torch.float32 and torch.bfloat16"),
        (dict.fromkeys(("x", "weight", "bias"), torch.float32), "takes float16 or bfloat16 alike"),
    ],
)
def test_a_call_that_the_epilogue_cannot_serve_is_refused_with_the_reason(changes, said):
    args = {"x": HALF.as_subclass(OnCuda), "weight": HALF.new_zeros(40, 12), "bias": HALF.new_zeros(40)}
    for name, change in changes.items():
        args[name] = change if isinstance(change, torch.Tensor) else args[name].to(change)
    found = ineligible(**args)
    assert said in found and bool(said) == bool(found)


def test_gradients_and_autocast_are_refused():
    args = (HALF.as_subclass(OnCuda), HALF.new_zeros(40, 12).requires_grad_(), HALF.new_zeros(40))
    assert ineligible(*args) == ""
    with torch.enable_grad():
        assert "gradient" in ineligible(*args)
    before = torch.is_autocast_enabled("cuda")
    torch.set_autocast_enabled("cuda", True)
    try:
        assert "autocast" in ineligible(*args)
    finally:
        torch.set_autocast_enabled("cuda", before)


# --- compiled code ----------------------------------------------------------------------------------------------------


@pytest.fixture
def serves(monkeypatch):
    """The technique that the operator finds."""
    technique = ready(FusedGelu())
    monkeypatch.setattr(feed_forward, "serving", lambda feature: technique)
    return technique


ARGS = (torch.randn(2, 3, 12), torch.randn(40, 12), torch.randn(40))


@pytest.mark.usefixtures("served")
def test_the_operator_is_what_its_fake_says(serves):
    for x in (ARGS[0], ARGS[0].transpose(0, 1)):
        torch.library.opcheck(activated, (x, *ARGS[1:]), test_utils=("test_schema", "test_faketensor"))
    assert serves.counters.seen["calls"] >= 2


def test_the_operator_falls_back_only_where_the_request_allows_it(serves):
    with pytest.raises(Ineligible, match="CUDA"):
        activated(*ARGS)
    serves.dense_when_ineligible = True
    assert torch.equal(activated(*ARGS), reference(*ARGS))
    assert [seam for seam, _ in serves.counters.reasons] == ["feed_forward"]
    assert not serves.counters.seen


# --- sessions ---------------------------------------------------------------------------------------------------------

ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "model.dtype": "bfloat16"}
ON = {"fused_gelu": True}
DENSE = {**ON, "on_ineligible": "dense"}


@pytest.fixture(scope="module")
def host():
    return host_of("wf_plugin_fused_wan", "wf_plugin_wan")


def claim(session):
    return session.report["effective"]["fused-gelu"]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("recipe", ["t2v", "two_experts", "ti2v", "vace"])
def test_a_clip_is_the_plain_clip_and_every_block_is_served(host, recipe):
    pipe, arguments = models.RECIPES[recipe](torch.bfloat16)
    arguments = {**arguments, "num_inference_steps": 2, "output_type": "latent"}
    with host.session(pipe, ON, facts=ELSEWHERE, verify_contents=True) as session:
        ours = session.pipe(**models.fresh(arguments)).frames
    assert torch.equal(ours, pipe(**models.fresh(arguments)).frames)
    assert claim(session)["state"] == "effective" and not session.report["fallbacks"]
    calls = sum(session.report["steps"]["calls"].values())
    blocks = sum(path.endswith(".ffn") for path, _ in pipe.transformer.named_modules())
    assert claim(session)["evidence"]["calls"] == calls * blocks


def hook(model, *blocks):
    for index in blocks:
        model.blocks[index].ffn.net[0].proj.register_forward_hook(lambda layer, args, out: out)
    return model


@pytest.mark.usefixtures("served")
def test_a_feed_forward_with_hooks_is_refused_or_counted(host):
    base, inputs = hook(models.w(num_layers=3), 1), models.w_inputs()
    with host.session(base, ON, facts=ELSEWHERE) as session:
        with pytest.raises(Refused, match=r"1 of 3 feed-forwards cannot be fused: .* hooks"):
            with session.run(num_inference_steps=1):
                session.model(**inputs)
    with host.session(base, DENSE, facts=ELSEWHERE) as session:
        with session.run(num_inference_steps=1):
            assert torch.equal(session.model(**inputs)[0], base(**inputs)[0])
        (fallback,) = session.report["fallbacks"]
    assert claim(session)["state"] == "partial" and claim(session)["evidence"]["calls"] == 2
    assert fallback["count"] == 1 and fallback["seam"] == "feed_forward" and "hooks" in fallback["reason"]


def test_a_model_of_which_nothing_can_be_fused_is_refused_even_so(host):
    with host.session(hook(models.w(num_layers=2), 0, 1), DENSE, facts=ELSEWHERE) as session:
        with pytest.raises(Refused, match="2 of 2 feed-forwards"):
            with session.run(num_inference_steps=1):
                pass


def test_calls_that_the_epilogue_cannot_serve_are_counted(host):
    base, inputs = models.w(num_layers=2), models.w_inputs()
    with host.session(base, DENSE, facts=ELSEWHERE) as session:
        with session.run(num_inference_steps=1):
            assert torch.equal(session.model(**inputs)[0], base(**inputs)[0])
        (fallback,) = session.report["fallbacks"]
    assert claim(session)["state"] == "inert"
    assert fallback["count"] == 2 and "on cpu" in fallback["reason"]


@pytest.mark.usefixtures("served")
@pytest.mark.parametrize("replaced", [0, 1])
def test_compiled_blocks_share_one_graph_and_are_counted(host, replaced):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    base, inputs = models.w(num_layers=3), models.w_inputs()
    for block in base.blocks[:replaced]:
        block.ffn.net[0].proj.__class__ = Lora
    plain = base(**inputs)[0]
    with host.session(base, DENSE, facts=ELSEWHERE) as session:
        for block in session.model.blocks:
            block.compile(backend="eager", fullgraph=True)
        with session.run(num_inference_steps=2):
            ours = [session.model(**inputs)[0] for _ in range(2)]
    assert all(torch.equal(out, plain) for out in ours)
    assert claim(session)["state"] == "effective"
    assert claim(session)["evidence"]["calls"] == 2 * (3 - replaced)
    assert len(claim(session)["evidence"].get("left_to_stock", [])) == replaced
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1 + replaced
