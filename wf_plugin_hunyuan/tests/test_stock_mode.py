"""With nothing claimed, the copy runs diffusers' own code; the root only adds the identity of the call."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from diffusers import HunyuanVideo15Transformer3DModel, HunyuanVideoTransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput

from wf_plugin_hunyuan.family import HunyuanFamily
from wf_plugin_hunyuan.open_attention import OpenProcessor
from wf_plugin_hunyuan.stock import blocks_of

STOCK = {
    "t2v": HunyuanVideoTransformer3DModel,
    "replace": HunyuanVideoTransformer3DModel,
    "1.5": HunyuanVideo15Transformer3DModel,
}


@pytest.mark.parametrize("kind", STOCK)
def test_no_claim_leaves_stock_functions_everywhere(kind: str, tiny: SimpleNamespace) -> None:
    model = tiny.model(kind)
    root = tiny.open(model).components["transformer"]
    assert root._wf._forward is STOCK[kind].forward
    assert not root._wf._claimed
    assert "_wf_memory" not in root.__dict__
    for (block, _, _), (stock, _, _) in zip(blocks_of(root), blocks_of(model), strict=True):
        assert type(block) is type(stock)
        assert type(block.attn.processor) is type(stock.attn.processor)
    assert not any("forward" in module.__dict__ for module in root.modules())
    assert (type(root).__name__, type(root).__module__) == (type(model).__name__, type(model).__module__)
    assert list(root.state_dict()) == list(model.state_dict())
    assert type(model) is STOCK[kind]


@pytest.mark.parametrize("seam", ["stack", "block", "branch", "rope", "attention", "linear", "denoiser"])
def test_a_claim_opens_only_its_own_level(seam: str, tiny: SimpleNamespace) -> None:
    root = tiny.open(tiny.model("t2v"), seam).components["transformer"]
    attn = root.transformer_blocks[0].attn
    opened = {
        "root": root._wf._forward is not HunyuanVideoTransformer3DModel.forward,
        "block forward": all("forward" in block.__dict__ for block, _, _ in blocks_of(root)),
        "attention": isinstance(attn.processor, OpenProcessor),
        "linear": type(attn.to_q) is not torch.nn.Linear,
        "denoiser": root._wf._claimed,
    }
    levels = {"stack": "root", "block": "root", "branch": "block forward", "rope": "attention"}
    level = levels.get(seam, seam)
    assert opened == {name: name == level for name in opened}


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
@pytest.mark.parametrize("seams", [(), ("denoiser", "stack")], ids=str)
def test_calls_keep_the_stock_signature(kind: str, seams: tuple[str, ...], tiny: SimpleNamespace) -> None:
    model, call = tiny.model(kind), tiny.call(kind)
    del call["return_dict"]
    opened = tiny.open(model, *seams)
    root = opened.components["transformer"]
    assert inspect.signature(root.forward) == inspect.signature(model.forward)
    stock = model(**call)
    names = list(inspect.signature(model.forward).parameters)
    in_order = [call.get(name) for name in names[: names.index("attention_kwargs")]]
    with opened.run():
        named, positional = root(**call), root(*in_order)
        as_tuple = root(**call, return_dict=False)
        with pytest.raises(TypeError, match="timestep"):
            root(hidden_states=call["hidden_states"])
    assert isinstance(named, Transformer2DModelOutput)
    assert type(as_tuple) is tuple
    for out in (named.sample, positional.sample, as_tuple[0]):
        assert torch.equal(out, stock.sample)


def test_a_call_outside_a_run_or_after_closing_is_refused(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"))
    with pytest.raises(RuntimeError, match="outside a run"):
        opened.components["transformer"](**tiny.call("t2v"))
    opened.wiring.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.components["transformer"](**tiny.call("t2v"))


def test_owned_and_roots(tiny: SimpleNamespace) -> None:
    family, pipe = HunyuanFamily(), tiny.pipe("1.5")
    assert family.owned(pipe) == ("transformer", "vae")
    assert family.owned(pipe.transformer) == ("transformer",)
    assert family.roots({"transformer": None}) == {}
    assert family.roots({"transformer": pipe.transformer, "vae": pipe.vae}) == {
        "transformer": pipe.transformer
    }


def test_placement_is_told_each_component_once(tiny: SimpleNamespace) -> None:
    told = []
    components = {"transformer": tiny.copy(tiny.model("t2v")), "vae": tiny.copy(tiny.vae())}
    tiny.opened(
        components, claims={"placement": lambda inner, site, name, module: told.append((name, module))}
    )
    assert told == list(components.items())


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_time_signals_are_those_of_the_model(kind: str, tiny: SimpleNamespace) -> None:
    """Of 1.5 they are the whole signal; HunyuanVideo adds what is the same at every step of a run."""
    live: list[tuple[torch.Tensor, ...]] = []
    opened = tiny.open(
        tiny.model(kind), claims={"modulation": lambda inner, site, *signals: live.append(signals)}
    )
    steps = (999.0, 500.5, 3.0)
    for t in steps:
        opened.once({**tiny.call(kind), "timestep": torch.tensor([t])})
    signals = opened.family.modulation(opened.components["transformer"], steps)
    width = 32 if kind == "1.5" else 20
    assert (signals["e"].shape, signals["e0"].shape) == ((3, width), (3, 6 * width))
    temb, rows = torch.cat([s[0] for s in live]), torch.cat([s[1].flatten(1) for s in live])
    if kind == "1.5":
        torch.testing.assert_close(signals["e"], temb, rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(signals["e0"], rows, rtol=1e-5, atol=1e-5)
    else:
        constant = temb - signals["e"]
        torch.testing.assert_close(constant, constant[:1].expand(3, -1), rtol=1e-5, atol=1e-5)


def test_time_signals_of_a_bf16_model_are_fp32(tiny: SimpleNamespace) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        signals = HunyuanFamily().modulation(tiny.model("replace", torch.bfloat16), torch.tensor([5.0]))
    assert signals["e"].dtype == signals["e0"].dtype == torch.float32
    assert not torch.equal(signals["e0"], signals["e0"].bfloat16().float())
