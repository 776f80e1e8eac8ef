"""A structural copy computes the same bits, and what is done to it does not reach the original."""

from __future__ import annotations

import functools
import gc
import weakref

import diffusers
import pytest
import torch
from diffusers.hooks import HookRegistry, ModelHook
from torch import nn
from torch.nn.utils import parametrizations, parametrize

from wf_core.errors import BadInput, CannotCopy
from wf_core.isolation.copying import assert_copyable, copy_module, copy_pipeline, hidden_tensors
from wf_core.isolation.fingerprint import fingerprint

WAN = dict(
    num_attention_heads=2,
    attention_head_dim=12,
    text_dim=32,
    ffn_dim=32,
    freq_dim=256,
    num_layers=2,
    rope_max_seq_len=32,
)


def wan(**changes):
    torch.manual_seed(0)
    return diffusers.WanTransformer3DModel(**{**WAN, **changes}).eval()


def noise(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(1)).to(dtype)


def wan_inputs(dtype, channels=16):
    return dict(
        hidden_states=noise(1, channels, 2, 4, 4, dtype=dtype),
        timestep=torch.tensor([500]),
        encoder_hidden_states=noise(1, 512, 32, dtype=dtype),
    )


def t2v(dtype):
    return wan(), wan_inputs(dtype)


def i2v(dtype):
    image = noise(1, 257, 4, dtype=dtype)
    model = wan(in_channels=36, image_dim=4, added_kv_proj_dim=24)
    return model, wan_inputs(dtype, 36) | {"encoder_hidden_states_image": image}


def vace(dtype):
    torch.manual_seed(0)
    model = diffusers.WanVACETransformer3DModel(**WAN, vace_layers=[0, 1], vace_in_channels=96)
    control = noise(1, 96, 2, 4, 4, dtype=dtype)
    return model.eval(), wan_inputs(dtype) | {"control_hidden_states": control}


def hunyuan(dtype):
    torch.manual_seed(0)
    model = diffusers.HunyuanVideoTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=10,
        num_layers=1,
        num_single_layers=1,
        num_refiner_layers=1,
        text_embed_dim=16,
        pooled_projection_dim=8,
        rope_axes_dim=(2, 4, 4),
    )
    return model.eval(), dict(
        hidden_states=noise(1, 4, 2, 4, 4, dtype=dtype),
        timestep=torch.tensor([500]),
        encoder_hidden_states=noise(1, 6, 16, dtype=dtype),
        encoder_attention_mask=torch.tensor([[1, 1, 1, 1, 0, 0]]),
        pooled_projections=noise(1, 8, dtype=dtype),
        guidance=torch.tensor([6000.0], dtype=dtype),
    )


def cosmos(dtype):
    torch.manual_seed(0)
    model = diffusers.CosmosTransformer3DModel(
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=12,
        num_layers=2,
        text_embed_dim=16,
        adaln_lora_dim=4,
        max_size=(8, 16, 16),
        concat_padding_mask=False,
    )
    nn.init.normal_(model.learnable_pos_embed.pos_emb_t)
    return model.eval(), dict(
        hidden_states=noise(1, 4, 2, 4, 4, dtype=dtype),
        timestep=torch.tensor([0.5], dtype=dtype),
        encoder_hidden_states=noise(1, 6, 16, dtype=dtype),
    )


def wan_vae(residual):
    torch.manual_seed(0)
    extra = dict(is_residual=True, in_channels=12, out_channels=12, patch_size=2, scale_factor_spatial=16)
    channels = 48 if residual else 16
    return diffusers.AutoencoderKLWan(
        base_dim=3,
        z_dim=channels,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        latents_mean=[0.0] * channels,
        latents_std=[1.0] * channels,
        **(extra if residual else {}),
    ).eval()


def same_bits(one, other, inputs):
    with torch.no_grad():
        return torch.equal(one(**inputs, return_dict=False)[0], other(**inputs, return_dict=False)[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("recipe", [t2v, i2v, vace, hunyuan, cosmos])
def test_copy_of_a_transformer_computes_the_same_bits(recipe, dtype):
    model, inputs = recipe(dtype)
    model = model.to(dtype)
    copied = copy_module(model)
    assert same_bits(model, copied, inputs)
    with torch.no_grad():
        assert copied(**inputs, return_dict=False)[0].abs().sum() > 0


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["fp32", "bf16"])
@pytest.mark.parametrize("residual", [False, True], ids=["wan21", "wan22"])
def test_copy_of_a_vae_encodes_and_decodes_the_same_bits(residual, dtype):
    vae = wan_vae(residual).to(dtype)
    copied = copy_module(vae)
    latents = noise(1, 48 if residual else 16, 2, 2, 2, dtype=dtype)
    video = noise(1, 3, 5, 32, 32, dtype=dtype)
    with torch.no_grad():
        assert torch.equal(vae.decode(latents).sample, copied.decode(latents).sample)
        assert torch.equal(vae.encode(video).latent_dist.mean, copied.encode(video).latent_dist.mean)


def test_copy_shares_tensors_and_nothing_else():
    model = wan()
    copied = copy_module(model)
    assert type(copied) is type(model)
    assert [(k, id(v)) for k, v in copied.named_parameters()] == [
        (k, id(v)) for k, v in model.named_parameters()
    ]
    assert [id(b) for b in copied.buffers()] == [id(b) for b in model.buffers()]
    assert list(copied.state_dict()) == list(model.state_dict())
    assert not {id(m) for m in copied.modules()} & {id(m) for m in model.modules()}


def test_copy_keeps_shared_submodules_and_processors_shared():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = self.two = nn.Linear(2, 2)
            self.one.processor = object.__new__(type("Processor", (), {}))
            self.processor = self.one.processor

    model = Twice()
    copied = copy_module(model)
    assert copied.one is copied.two is not model.one
    assert copied.processor is copied.one.processor is not model.processor


def test_copy_survives_a_cycle_of_modules():
    class Node(nn.Module):
        pass

    model = Node()
    model.add_module("me", model)
    copied = copy_module(model)
    assert copied.me is copied


def test_dropping_the_copy_frees_it():
    gone = weakref.ref(copy_module(wan()))
    gc.collect()
    assert gone() is None


def replace_processor(model):
    model.blocks[0].attn1.set_processor(type("Other", (), {"__call__": lambda *a, **k: None})())


def change_processor(model):
    model.blocks[0].attn1.processor._attention_backend = "math"


def override_forward(model):
    model.blocks[0].forward = lambda *args, **kwargs: None


def replace_block(model):
    model.blocks[0] = nn.Identity()


def add_hooks(model):
    model.blocks[0].register_forward_hook(lambda *args: None)
    model.blocks[0].register_forward_pre_hook(lambda *args: None, with_kwargs=True)
    model.register_state_dict_pre_hook(lambda *args: None)


def add_diffusers_hook(model):
    HookRegistry.check_if_exists_or_initialize(model.blocks[0]).register_hook(ModelHook(), "test")


def fuse_qkv(model):
    model.fuse_qkv_projections()


def compile_block(model):
    model.blocks[0].compile(backend="eager")


def add_weight_norm(model):
    parametrizations.weight_norm(model.blocks[0].attn1.to_q)


def add_buffer(model):
    model.register_buffer("extra", torch.zeros(1), persistent=False)


def change_mode(model):
    model.train()


def replace_parameter(model):
    model.proj_out.weight = nn.Parameter(torch.zeros_like(model.proj_out.weight))


ACTIONS = [
    replace_processor,
    change_processor,
    override_forward,
    replace_block,
    add_hooks,
    add_diffusers_hook,
    fuse_qkv,
    compile_block,
    add_weight_norm,
    add_buffer,
    change_mode,
    replace_parameter,
]


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_action_on_the_copy_leaves_the_original_untouched(action):
    model, inputs = t2v(torch.float32)
    with torch.no_grad():
        expected = model(**inputs).sample
    before = fingerprint(model, contents=True)
    action(copy_module(model))
    assert before.diff(fingerprint(model, contents=True)) == []
    with torch.no_grad():
        assert torch.equal(model(**inputs).sample, expected)


@pytest.mark.parametrize("action", ACTIONS, ids=lambda action: action.__name__)
def test_action_on_the_original_leaves_the_copy_untouched(action):
    model = wan()
    copied = copy_module(model)
    before = fingerprint(copied)
    action(model)
    assert before.diff(fingerprint(copied)) == []
    assert fingerprint(model).diff(before), "the action was expected to do something"


def test_fused_copy_computes_the_same_bits():
    model, inputs = t2v(torch.float32)
    copied = copy_module(model)
    copied.fuse_qkv_projections()
    assert same_bits(model, copied, inputs)


def test_cast_of_the_copy_writes_through():
    """Known and documented: the tensors are shared, so a plugin may not do this."""
    model = wan()
    copy_module(model).half()
    assert model.proj_out.weight.dtype is torch.float16


def test_hooks_present_before_live_on_independently():
    model = nn.Linear(2, 2)
    calls = []
    handle = model.register_forward_hook(lambda module, *rest: calls.append(module))
    copied = copy_module(model)
    handle.remove()
    model(torch.zeros(1, 2))
    copied(torch.zeros(1, 2))
    assert calls == [copied]


def test_parametrisation_removed_from_the_copy_stays_on_the_original():
    model = nn.Sequential(parametrizations.weight_norm(nn.Linear(3, 3)))
    copied = copy_module(model)
    x = noise(1, 3)
    assert torch.equal(model(x), copied(x))
    parametrize.remove_parametrizations(copied[0], "weight")
    assert type(copied[0]) is nn.Linear
    assert parametrize.is_parametrized(model[0])
    assert torch.equal(model(x), copied(x))


def test_legacy_weight_norm_removed_from_the_copy_stays_on_the_original():
    with pytest.warns(FutureWarning):
        model = nn.utils.weight_norm(nn.Linear(3, 3))
    copied = copy_module(model)
    nn.utils.remove_weight_norm(copied)
    assert len(model._forward_pre_hooks) == 1
    assert "weight_g" in model._parameters and "weight_g" not in copied._parameters


def test_compiled_original_gives_a_copy_that_is_not():
    model, inputs = t2v(torch.float32)
    model.compile(backend="eager")
    copied = copy_module(model)
    assert copied._compiled_call_impl is None
    assert copied.forward.__self__ is copied


def test_residue_of_removed_hooks_is_dropped():
    model = wan()
    registry = HookRegistry.check_if_exists_or_initialize(model)
    registry.register_hook(ModelHook(), "test")
    registry.remove_hook("test")
    assert "forward" in vars(model) and "_diffusers_hook" in vars(model)
    copied = copy_module(model)
    assert not {"forward", "_diffusers_hook"} & vars(copied).keys()


def has_diffusers_hook(model):
    add_diffusers_hook(model)


def has_forward(model):
    model.blocks[0].forward = functools.partial(type(model.blocks[0]).forward, model.blocks[0])


def has_foreign_bound_forward(model):
    model.blocks[0].forward = model.blocks[1].forward


def has_accelerate_hook(model):
    hooks = pytest.importorskip("accelerate.hooks")
    hooks.add_hook_to_module(model.blocks[0], hooks.ModelHook())


def has_hidden_module(model):
    object.__setattr__(model.blocks[0], "_parent", [model])


def has_method_in_a_dict(model):
    model.blocks[0].table = {"norm": model.blocks[0].norm1.forward}


def has_closure(model):
    block = model.blocks[0]
    block.shortcut = lambda x: block.norm1(x)


@pytest.mark.parametrize(
    ("prepare", "found"),
    [
        (has_diffusers_hook, "diffusers hooks test"),
        (has_forward, "forward of its own"),
        (has_foreign_bound_forward, "forward of its own"),
        (has_accelerate_hook, "accelerate hook ModelHook"),
        (has_hidden_module, r"blocks\.0\._parent\[0\] holds a WanTransformer3DModel"),
        (has_method_in_a_dict, r"table\['norm'\] holds a method bound to FP32LayerNorm"),
        (has_closure, r"shortcut\(closure block\)"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_model_whose_copy_would_run_the_original_is_refused(prepare, found):
    model = wan()
    prepare(model)
    with pytest.raises(CannotCopy, match=rf"transformer\.blocks\.0.*{found}|{found}"):
        copy_module(model, "transformer")
    with pytest.raises(CannotCopy, match=r"model\.blocks\.0"):
        assert_copyable(model)


def test_wrapper_of_torch_compile_is_refused():
    with pytest.raises(CannotCopy, match="forward of its own"):
        copy_module(torch.compile(nn.Linear(2, 2), backend="eager"))


def test_hidden_tensor_is_kept_and_listed():
    model = nn.Sequential(nn.Linear(2, 2))
    model[0].cache = {"rope": [torch.zeros(1)]}
    assert hidden_tensors(model) == ["model.0.cache['rope'][0]"]
    copied = copy_module(model)
    assert copied[0].cache is not model[0].cache
    assert copied[0].cache["rope"][0] is model[0].cache["rope"][0]


def test_parameters_listed_twice_are_not_hidden():
    assert hidden_tensors(nn.LSTM(2, 2)) == []


def test_families_hide_nothing():
    for recipe in (t2v, i2v, vace, hunyuan, cosmos):
        assert hidden_tensors(recipe(torch.float32)[0]) == []
    assert hidden_tensors(wan_vae(True)) == []


def test_vae_copied_in_the_middle_of_a_decode_starts_fresh():
    vae = wan_vae(False)
    latents = noise(1, 16, 2, 2, 2)
    with torch.no_grad():
        expected = vae.decode(latents).sample
        vae.clear_cache()
        vae._conv_idx = [3]
        vae._feat_map[0] = torch.full((1,), 9.0)
        copied = copy_module(vae)
        assert copied._conv_idx == [0] and vae._conv_idx == [3]
        assert copied._feat_map == [None] * len(vae._feat_map)
        assert vae._feat_map[0].item() == 9.0
        assert torch.equal(copied.decode(latents).sample, expected)


def wan_pipeline(**parts):
    scheduler = diffusers.UniPCMultistepScheduler(prediction_type="flow_prediction", use_flow_sigmas=True)
    return diffusers.WanPipeline(
        **{
            "tokenizer": None,
            "text_encoder": None,
            "vae": wan_vae(False),
            "scheduler": scheduler,
            "transformer": wan(),
            **parts,
        }
    )


def run(pipe):
    pipe.set_progress_bar_config(disable=True)
    return pipe(
        prompt_embeds=noise(1, 512, 32),
        negative_prompt_embeds=noise(1, 512, 32) + 1,
        num_frames=5,
        height=16,
        width=16,
        num_inference_steps=2,
        generator=torch.Generator().manual_seed(3),
        output_type="pt",
    ).frames


def test_copied_pipeline_computes_the_same_bits_and_leaves_the_base_alone():
    base = wan_pipeline()
    expected = run(base)
    before = fingerprint(base, contents=True)
    copied = copy_pipeline(base, ("transformer", "vae"))
    assert torch.equal(run(copied), expected)
    assert before.diff(fingerprint(base, contents=True)) == []
    assert type(copied) is type(base) and copied.components.keys() == base.components.keys()


def test_copied_pipeline_owns_what_was_named_and_shares_the_rest():
    base = wan_pipeline(text_encoder=None)
    config, table = base.config, dict(base.config)
    copied = copy_pipeline(base, ["transformer"])
    assert copied.transformer is not base.transformer
    assert copied.vae is base.vae
    assert copied.scheduler is not base.scheduler
    copied.scheduler = diffusers.FlowMatchEulerDiscreteScheduler()
    copied.register_modules(vae=None)
    copied.set_progress_bar_config(disable=True)
    assert base.config is config and dict(base.config) == table
    assert base.vae is not None and not hasattr(base, "_progress_bar_config")


def test_module_used_by_two_components_is_copied_once():
    model = wan()
    copied = copy_pipeline(
        wan_pipeline(transformer=model, transformer_2=model), ("transformer", "transformer_2")
    )
    assert copied.transformer is copied.transformer_2 is not model


@pytest.mark.parametrize("name", ["unet", "scheduler"])
def test_own_component_that_is_no_module_is_bad_input(name):
    with pytest.raises(BadInput, match=rf"no module component '{name}'; it has vae, transformer"):
        copy_pipeline(wan_pipeline(), [name])


def test_offloaded_pipeline_is_refused_also_for_a_shared_component():
    hooks = pytest.importorskip("accelerate.hooks")
    base = wan_pipeline()
    hooks.add_hook_to_module(base.vae.decoder, hooks.ModelHook())
    with pytest.raises(CannotCopy, match=r"vae\.decoder carries the accelerate hook"):
        copy_pipeline(base, ["transformer"])


def test_pipeline_with_offload_hooks_or_device_map_is_refused():
    base = wan_pipeline()
    base._all_hooks = [object()]
    base.hf_device_map = {"vae": 0, "transformer": 1}
    with pytest.raises(CannotCopy, match=r"\(1 hooks\).*reset_device_map"):
        assert_copyable(base)
    base._all_hooks, base.hf_device_map = [], {"": "cpu"}
    assert_copyable(base)
