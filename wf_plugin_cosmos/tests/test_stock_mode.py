"""With nothing claimed, the copy runs diffusers' own code; the root only adds the identity of the call."""

from __future__ import annotations

import copy
import inspect
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLCosmos, AutoencoderKLWan, CosmosTransformer3DModel
from diffusers.models.autoencoders.vae import DecoderOutput
from diffusers.models.modeling_outputs import AutoencoderKLOutput, Transformer2DModelOutput
from diffusers.models.transformers.transformer_cosmos import CosmosAttnProcessor2_0, CosmosTransformerBlock

from wf_plugin_cosmos.family import CosmosFamily


def test_no_claim_leaves_stock_functions_everywhere(tiny: SimpleNamespace) -> None:
    model = tiny.model("transfer")
    root = tiny.open(model).components["transformer"]
    assert root._wf._forward is CosmosTransformer3DModel.forward
    assert not root._wf._claimed
    for block, stock in zip(root.transformer_blocks, model.transformer_blocks, strict=True):
        assert type(block) is CosmosTransformerBlock
        assert type(block.attn2.processor) is type(stock.attn2.processor)
    assert not any("forward" in module.__dict__ for module in root.modules())
    assert {type(m) for m in root.modules()} - {type(root)} <= {type(m) for m in model.modules()}


@pytest.mark.parametrize("seam", ["stack", "attention", "branch", "linear", "denoiser"])
def test_a_claim_opens_only_its_own_level(seam: str, tiny: SimpleNamespace) -> None:
    root = tiny.open(tiny.model("p2"), seam).components["transformer"]
    block = root.transformer_blocks[0]
    opened = {
        "stack": root._wf._forward is not CosmosTransformer3DModel.forward,
        "attention": type(block.attn1.processor) is not CosmosAttnProcessor2_0,
        "branch": "forward" in block.__dict__,
        "linear": type(block.attn1.to_q) is not torch.nn.Linear,
        "denoiser": root._wf._claimed,
    }
    assert opened == {level: level == seam for level in opened}


@pytest.mark.parametrize("seams", [(), ("denoiser",), ("stack",)])
def test_calls_keep_the_stock_signature(seams: tuple[str, ...], tiny: SimpleNamespace) -> None:
    model, call = tiny.model("p1"), tiny.call("p1")
    del call["return_dict"], call["fps"]
    opened = tiny.open(model, *seams)
    root = opened.components["transformer"]
    assert inspect.signature(root.forward) == inspect.signature(model.forward)
    stock = model(**call)
    with opened.run():
        named, positional = root(**call), root(*call.values())
        as_tuple = root(**call, return_dict=False)
        with pytest.raises(TypeError, match="timestep"):
            root(hidden_states=call["hidden_states"])
        with pytest.raises(ValueError, match="timestep"):
            root(**{**call, "timestep": torch.zeros(1, 2)})
    assert isinstance(named, Transformer2DModelOutput)
    assert type(as_tuple) is tuple
    for out in (named.sample, positional.sample, as_tuple[0]):
        assert torch.equal(out, stock.sample)


def test_a_call_outside_a_run_or_after_closing_is_refused(tiny: SimpleNamespace) -> None:
    opened = tiny.open(tiny.model("p1"))
    with pytest.raises(RuntimeError, match="outside a run"):
        opened.components["transformer"](**tiny.call("p1"))
    opened.wiring.close()
    with pytest.raises(RuntimeError, match="closed"):
        opened.components["transformer"](**tiny.call("p1"))


def test_placement_is_told_each_component_once(tiny: SimpleNamespace) -> None:
    told = []
    components = {"transformer": tiny.copy(tiny.model("p1")), "vae": tiny.copy(tiny.vae("p1"))}
    tiny.opened(
        components, claims={"placement": lambda inner, site, name, module: told.append((name, module))}
    )
    assert told == list(components.items())


def test_the_control_network_and_the_safety_checker_are_shared(tiny: SimpleNamespace) -> None:
    pipe, model = tiny.pipe("transfer"), tiny.model("p1")
    family = CosmosFamily()
    assert family.owned(pipe) == ("transformer", "vae")
    assert family.owned(model) == ("transformer",)
    assert family.roots({"vae": pipe.vae}) == {}
    copied, _ = tiny.open_pipe(pipe)
    assert copied.controlnet is pipe.controlnet
    assert copied.safety_checker is pipe.safety_checker


# --- the VAEs ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "stock"), [("p1", AutoencoderKLCosmos), ("p2", AutoencoderKLWan)])
def test_the_vae_through_its_seams_is_bit_identical(kind: str, stock: type, tiny: SimpleNamespace) -> None:
    vae = tiny.vae(kind)
    opened = tiny.opened({"vae": tiny.copy(vae)}, ("vae.decode", "vae.encode"))
    copied = opened.components["vae"]
    torch.manual_seed(5)
    latents, video = torch.randn(2, 16, 2, 4, 6), torch.randn(2, 3, 9, 32, 32)
    for slicing in (False, True):
        vae.use_slicing = copied.use_slicing = slicing
        out, encoded = copied.decode(latents), copied.encode(video)
        assert isinstance(out, DecoderOutput) and isinstance(encoded, AutoencoderKLOutput)
        assert torch.equal(out.sample, vae.decode(latents).sample)
        assert torch.equal(encoded.latent_dist.mode(), vae.encode(video).latent_dist.mode())
    assert [shapes[0][0] for _, shapes in opened.seen.of("vae.decode")] == [2, 1, 1]
    assert type(tiny.opened({"vae": tiny.copy(vae)}).components["vae"]) is stock


def test_release_drops_what_an_aborted_decode_left(tiny: SimpleNamespace) -> None:
    opened = tiny.opened({"vae": tiny.copy(tiny.vae("p2"))})
    copied = opened.components["vae"]

    def fail(module: Any, args: Any) -> None:
        raise RuntimeError("out of luck")

    copied.decoder.conv_out.register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="out of luck"):
        copied.decode(torch.randn(1, 16, 2, 4, 6))
    assert any(isinstance(kept, torch.Tensor) for kept in copied._feat_map)
    opened.family.release(opened.components)
    assert not any(isinstance(kept, torch.Tensor) for kept in copied._feat_map)


# --- the time signals -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_signals_equal_the_models_own(dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    model, steps = tiny.model("p1", dtype), (0.9, -0.5)
    signals = CosmosFamily().modulation(model, steps)
    exact = copy.deepcopy(model.time_embed).double()
    temb, embedded = exact(torch.zeros(1, dtype=torch.float64), torch.tensor(steps))
    assert {name: (tuple(s.shape), s.dtype) for name, s in signals.items()} == {
        "e": ((2, tiny.width), torch.float32),
        "e0": ((2, 3 * tiny.width), torch.float32),
    }
    torch.testing.assert_close(signals["e"].double(), embedded, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(signals["e0"].double(), temb, rtol=1e-5, atol=1e-5)
