"""A fingerprint sees every change that matters, says what it was, and nothing else."""

from __future__ import annotations

import diffusers
import pytest
import torch
from diffusers.hooks import HookRegistry, ModelHook
from torch import nn

from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.tensor_identity import UNTRACKED, content_digest, tensor_record


def small():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Sequential(nn.Linear(4, 4)))
    model[0].processor = Processor()
    return model.eval()


class Processor:
    scale = 1

    def __init__(self):
        self.backend = None


def changes(model, act, **options):
    before = fingerprint(model, **options)
    act(model)
    return before.diff(fingerprint(model, **options))


def edit(statement):
    def act(m):
        exec(statement, {"torch": torch, "nn": nn, "Processor": Processor, "m": m})

    return act


@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("m[2][0] = nn.Identity()", "model.2.0: replaced (Linear -> Identity)"),
        ("m.add_module('3', nn.ReLU())", "model.3: added (ReLU)"),
        ("del m[2]", "model.2: removed (Sequential)"),
        ("m[0].train()", "model.0: values training False -> True"),
        ("m[1].eps = 0.5", "model.1: values eps 1e-05 -> 0.5"),
        ("m[0].note = []", "model.0: attributes +note"),
        ("m[0].forward = abs", "model.0: forward none -> abs"),
        ("m[0].processor = Processor()", "model.0: processor Processor: another object or other values"),
        ("m[0].processor.backend = 'x'", "model.0: processor Processor: another object or other values"),
        ("m[0].register_forward_hook(abs)", "model.0: torch hooks none -> 1 in _forward_hooks"),
        ("m[0].compile(backend='eager')", "model.0: compiled False -> True"),
        ("m[0].weight.detach().add_(0)", "model.0.weight: version 1 -> 2"),
        ("m[0].weight.requires_grad_(False)", "model.0.weight: requires_grad True -> False"),
        ("m[0].weight.data = m[0].weight.data.clone()", "model.0.weight: data pointer replaced"),
        ("m[0].weight.data = m[0].weight.data.T", "model.0.weight: stride (4, 1) -> (1, 4)"),
        ("m[0].bias = None", "model.0.bias: tensor removed"),
        ("m[1].register_buffer('t', None); m[1].t = torch.ones(1)", "model.1.t: tensor added"),
    ],
)
def test_change_is_named_in_one_line(statement, line):
    with torch.no_grad():
        assert changes(small(), edit(statement)) == [line]


def test_cast_there_and_back_is_seen():
    lines = changes(small(), lambda m: m.bfloat16().float())
    assert "model.2.0.weight: data pointer replaced" in lines


def test_nothing_below_a_replaced_module_is_listed():
    assert changes(small(), edit("m[2] = nn.Sequential(nn.Linear(4, 4))")) == [
        "model.2: replaced (Sequential -> Sequential)"
    ]


def test_residue_of_ordinary_use_is_no_change():
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, text_dim=8, ffn_dim=8, num_layers=2, rope_max_seq_len=8
    )

    def use(model):
        with model.cache_context("cond"):
            pass
        registry = HookRegistry.check_if_exists_or_initialize(model.blocks[0])
        registry.register_hook(ModelHook(), "test")
        registry.remove_hook("test")
        model.enable_cache(diffusers.FirstBlockCacheConfig())
        model.disable_cache()
        model.fuse_qkv_projections()
        model.unfuse_qkv_projections()

    assert changes(model, use, contents=True) == []
    assert "forward" in vars(model.blocks[0])


def test_diffusers_hook_is_named():
    lines = changes(small(), lambda m: HookRegistry(m[0]).register_hook(ModelHook(), "test"))
    assert lines == ["model.0: forward none -> Linear.forward"]

    def properly(m):
        HookRegistry.check_if_exists_or_initialize(m[0]).register_hook(ModelHook(), "test")

    assert "model.0: diffusers hooks none -> test" in changes(small(), properly)


def test_vae_cache_counts_only_while_it_holds_tensors():
    vae = diffusers.AutoencoderKLWan(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1)
    with torch.no_grad():
        assert changes(vae, lambda v: v.decode(torch.zeros(1, 16, 1, 2, 2)), contents=True) == []
    before = fingerprint(vae)
    vae._feat_map[0] = torch.zeros(1)
    after = fingerprint(vae)
    assert before.diff(after) == ["model: call cache absent -> 1 tensors (run state)"]
    assert before.diff(after, run_state=False) == []


def test_write_that_no_counter_sees_needs_contents():
    def write(model):
        model[0].weight.detach().numpy()[1, 2] += 1

    assert changes(small(), write) == []
    assert changes(small(), write, contents=True) == ["model.0.weight: contents changed"]


def test_inference_tensor_is_untracked():
    with torch.inference_mode():
        model = small()
    assert tensor_record(model[0].weight)[-1] == UNTRACKED
    assert changes(model, lambda m: None, contents=True) == []


def test_tied_module_is_recorded_under_both_names():
    model = nn.ModuleDict({"a": nn.Linear(2, 2)})
    model["b"] = model["a"]
    assert {"model.a", "model.b"} <= fingerprint(model).structure.keys()


def tensors():
    base = torch.arange(10_000, dtype=torch.float32)
    names = ["float64", "bfloat16", "float16", "int8", "uint8", "bool", "complex64", "int64"]
    yield from ((name, base.to(getattr(torch, name))) for name in names)
    yield "float8", base.clamp(max=200).to(torch.float8_e4m3fn)
    yield "odd size", base[:7].to(torch.uint8)
    yield "scalar", base[5]
    yield "strided", base.view(100, 100).T[::2]
    yield "unaligned view", base.to(torch.bfloat16)[3:900]
    yield "sparse", torch.eye(5).to_sparse()


@pytest.mark.parametrize(
    ("name", "tensor"), list(tensors()), ids=lambda value: value if type(value) is str else ""
)
def test_contents_of_any_tensor_are_digested(name, tensor):
    digest = content_digest(tensor)
    assert digest == content_digest(tensor.clone())
    other = tensor.clone()
    if name == "sparse":
        other = (tensor.to_dense() * 2).to_sparse()
    elif tensor.dim():
        other[(-1,) * tensor.dim()] = 0
    else:
        other += 1
    assert digest != content_digest(other)


def test_contents_notice_two_elements_that_change_places():
    tensor = torch.arange(3 * 4096, dtype=torch.int64)
    for i, j in ((0, 1), (0, 4096), (5, 2 * 4096 + 7)):
        other = tensor.clone()
        other[i], other[j] = tensor[j], tensor[i]
        assert content_digest(other) != content_digest(tensor)


def test_contents_of_nothing():
    assert content_digest(torch.empty(0, 3)) == content_digest(torch.empty(0, 3))
    assert content_digest(torch.empty(0, 3)) != content_digest(torch.empty(3, 0))
    assert content_digest(torch.empty(4, device="meta")) == "meta"


@pytest.mark.filterwarnings("ignore:Sparse CSR tensor support:UserWarning")
def test_records_of_odd_tensors_do_not_raise():
    for tensor in (torch.empty(2, device="meta"), torch.eye(3).to_sparse(), torch.eye(3).to_sparse_csr()):
        assert tensor_record(tensor) == tensor_record(tensor)


def pipeline():
    model = diffusers.WanTransformer3DModel(
        num_attention_heads=2, attention_head_dim=12, text_dim=8, ffn_dim=8, num_layers=1, rope_max_seq_len=8
    )
    return diffusers.WanPipeline(
        tokenizer=None,
        text_encoder=None,
        vae=diffusers.AutoencoderKLWan(base_dim=3, dim_mult=[1, 1, 1, 1], num_res_blocks=1),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
        transformer=model,
    )


@pytest.mark.parametrize(
    ("act", "start"),
    [
        (lambda p: setattr(p, "vae", None), "pipeline.vae:"),
        (
            lambda p: setattr(p, "scheduler", diffusers.UniPCMultistepScheduler()),
            "pipeline.scheduler: replaced",
        ),
        (lambda p: p.scheduler.register_to_config(shift=9.0), "pipeline.scheduler: configuration changed"),
        (lambda p: p.transformer.blocks[0].train(False), "transformer.blocks.0: values training"),
        (lambda p: p.vae.enable_tiling(), "vae: values use_tiling False -> True"),
        (lambda p: p.register_to_config(boundary_ratio=0.5), "pipeline: configuration changed"),
    ],
)
def test_change_of_a_pipeline_names_the_component(act, start):
    pipe = pipeline()
    pipe.transformer.train()
    lines = changes(pipe, act)
    assert any(line.startswith(start) for line in lines), lines


def test_progress_of_a_run_is_kept_apart():
    pipe = pipeline()
    before = fingerprint(pipe)
    pipe.scheduler.set_timesteps(4)
    pipe._guidance_scale = 5.0
    after = fingerprint(pipe)
    assert before.diff(after, run_state=False) == []
    assert "pipeline._guidance_scale absent -> 5.0 (run state)" in before.diff(after)
