"""With nothing claimed, the copy runs diffusers' own code; the root only adds the identity of the call."""

from __future__ import annotations

import inspect
from types import SimpleNamespace

import pytest
import torch
from diffusers import AutoencoderKLWan, WanTransformer3DModel, WanVACETransformer3DModel
from diffusers.models.modeling_outputs import Transformer2DModelOutput
from diffusers.models.transformers.transformer_wan import WanAttnProcessor, WanTransformerBlock
from diffusers.models.transformers.transformer_wan_vace import WanVACETransformerBlock

STOCK = {"t2v": WanTransformer3DModel, "vace": WanVACETransformer3DModel}


@pytest.mark.parametrize("kind", STOCK)
def test_no_claim_leaves_stock_functions_everywhere(kind: str, tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model(kind))
    root = opened.components["transformer"]
    assert root._wf._forward is STOCK[kind].forward
    assert not root._wf._claimed
    for block in [*root.blocks, *getattr(root, "vace_blocks", ())]:
        assert type(block) in (WanTransformerBlock, WanVACETransformerBlock)
        assert type(block.attn1.processor) is type(block.attn2.processor) is WanAttnProcessor
    assert not any("forward" in module.__dict__ for module in root.modules())
    assert {type(m) for m in root.modules()} - {type(root)} <= {type(m) for m in tiny.model(kind).modules()}


@pytest.mark.parametrize("seam", ["stack", "attention", "branch", "linear", "denoiser"])
def test_a_claim_opens_only_its_own_level(seam: str, tiny: SimpleNamespace) -> None:
    root = tiny.open(tiny.model("t2v"), seam).components["transformer"]
    opened = {
        "stack": root._wf._forward is not WanTransformer3DModel.forward,
        "attention": type(root.blocks[0].attn1.processor) is not WanAttnProcessor,
        "branch": "forward" in root.blocks[0].__dict__,
        "linear": type(root.blocks[0].attn1.to_q) is not torch.nn.Linear,
        "denoiser": root._wf._claimed,
    }
    assert opened == {level: level == seam for level in opened}


@pytest.mark.parametrize("kind", ["t2v", "i2v", "ti2v", "vace"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_stock_mode_is_bit_identical(kind: str, dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    model, call = tiny.model(kind, dtype), tiny.call(kind, dtype)
    opened = tiny.open(model)
    with opened.run():
        assert torch.equal(opened.components["transformer"](**call)[0], model(**call)[0])


@pytest.mark.parametrize("seams", [(), ("denoiser",), ("stack",)])
def test_calls_keep_the_stock_signature(seams: tuple[str, ...], tiny: SimpleNamespace) -> None:
    model, call = tiny.model("t2v"), tiny.call("t2v")
    del call["return_dict"]
    opened = tiny.open(model, *seams)
    root = opened.components["transformer"]
    assert inspect.signature(root.forward) == inspect.signature(model.forward)
    stock = model(**call)
    with opened.run():
        named, positional = root(**call), root(*call.values())
        as_tuple = root(**call, return_dict=False)
        with pytest.raises(TypeError, match="timestep"):
            root(hidden_states=call["hidden_states"])
    assert isinstance(named, Transformer2DModelOutput)
    assert type(as_tuple) is tuple
    for out in (named.sample, positional.sample, as_tuple[0]):
        assert torch.equal(out, stock.sample)


def test_denoiser_handlers_get_the_call_by_name_and_may_change_it(tiny: SimpleNamespace) -> None:
    model, call = tiny.model("t2v"), tiny.call("t2v")
    given = []

    def halve(inner, site, arguments):
        given.append((site.seam, site.root, sorted(arguments)))
        return inner({**arguments, "hidden_states": arguments["hidden_states"] / 2})

    opened = tiny.open(model, claims={"denoiser": halve})
    with opened.run():
        out = opened.components["transformer"](*list(call.values())[:3], return_dict=False)[0]
    assert given == [("denoiser", "transformer", ["encoder_hidden_states", "hidden_states", "timestep"])]
    assert torch.equal(out, model(**{**call, "hidden_states": call["hidden_states"] / 2})[0])


def test_guidance_stands_around_denoiser(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"), "denoiser", "guidance")
    with opened.run():
        opened.components["transformer"](**tiny.call("t2v"))
    assert [site.seam for site, _ in opened.seen.calls] == ["guidance", "denoiser"]


@pytest.mark.parametrize("seams", [(), ("stack",), ("denoiser", "branch", "linear")])
def test_a_lora_scale_in_attention_kwargs_works_like_stock(
    seams: tuple[str, ...], tiny: SimpleNamespace
) -> None:
    """The stock forward scales its adapters for the call; the open one is under the same decorator."""
    peft = pytest.importorskip("peft")
    model, call = tiny.copy(tiny.model("t2v")), tiny.call("t2v")
    model.add_adapter(peft.LoraConfig(r=2, target_modules=["to_q", "to_v"], init_lora_weights=False))
    full, halved = model(**call)[0], model(**call, attention_kwargs={"scale": 0.5})[0]
    assert not torch.equal(full, halved)
    opened, given = tiny.open(model, *seams), {"scale": 0.5}
    with opened.run():
        root = opened.components["transformer"]
        assert torch.equal(root(**call, attention_kwargs=given)[0], halved)
        assert torch.equal(root(**call)[0], full)
    assert given == {"scale": 0.5}


def test_a_call_outside_a_run_or_after_closing_is_refused(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("t2v"))
    with pytest.raises(RuntimeError, match="outside a run"):
        opened.components["transformer"](**tiny.call("t2v"))
    opened.wiring.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.components["transformer"](**tiny.call("t2v"))


def test_the_root_keeps_its_class_name_and_blocks_their_class(tiny: SimpleNamespace) -> None:
    model = tiny.model("t2v")
    root = tiny.open(model).components["transformer"]
    assert isinstance(root, WanTransformer3DModel)
    assert (type(root).__name__, type(root).__module__) == (type(model).__name__, type(model).__module__)
    assert list(root.state_dict()) == list(model.state_dict())
    assert type(model) is WanTransformer3DModel


def test_placement_is_told_each_component_once(tiny: SimpleNamespace) -> None:
    told = []
    components = {"transformer": tiny.copy(tiny.model("t2v")), "vae": tiny.copy(tiny.vae())}
    tiny.opened(
        components, claims={"placement": lambda inner, site, name, module: told.append((name, module))}
    )
    assert told == list(components.items())


def test_owned_and_roots(tiny: SimpleNamespace) -> None:
    from diffusers import WanPipeline

    model = tiny.model("t2v")
    family = tiny.open(model).family
    assert family.owned(model) == ("transformer",)
    both = tiny.pipe(WanPipeline, model, tiny.vae(), transformer_2=model, boundary_ratio=0.9)
    assert family.owned(both) == ("transformer", "transformer_2", "vae")
    only_second = tiny.pipe(WanPipeline, None, None, transformer_2=model, boundary_ratio=1.0)
    assert family.owned(only_second) == ("transformer_2",)
    assert family.roots({"transformer": None, "transformer_2": model}) == {"transformer_2": model}


def test_a_stock_vae_stays_stock(tiny: SimpleNamespace) -> None:
    opened = tiny.opened({"transformer": tiny.copy(tiny.model("t2v")), "vae": tiny.copy(tiny.vae())})
    assert type(opened.components["vae"]) is AutoencoderKLWan
