"""The features on tiny models of Cosmos and HunyuanVideo: bit for bit stock where they are exact, near it elsewhere.

References stand in for the kernels, which need a CUDA device.
"""

from __future__ import annotations

from importlib import import_module
from types import SimpleNamespace

import pytest
import torch
from diffusers import (
    CosmosTransformer3DModel,
    HunyuanVideoTransformer3DModel,
)

from support import models
from wf_core import Refused
from wf_core.testing import host_of, seeded
from wf_plugin_fused_wan import feed_forward, gated_residual, norm_modulate
from wf_plugin_fused_wan import gate as gates

RESIDUALS = {"cosmos": (3, 2), "hunyuan": (5, 2)}
"""Of a pair of blocks, on average: all, and those that are not the first of a stream."""
HALF = torch.bfloat16
BOUNDS = {torch.float32: 1e-5, HALF: 2e-2}
"""The manifest's."""
ELSEWHERE = {"device.type": "cuda", "device.sm": 90, "package.triton": "3.6.0"}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.fixture(scope="module")
def hosts():
    return {name: host_of("wf_plugin_fused_wan", f"wf_plugin_{name}") for name in ("cosmos", "hunyuan")}


@pytest.fixture(
    scope="module",
    params=[(family, dtype) for family in ("cosmos", "hunyuan") for dtype in (torch.float32, HALF)],
    ids=str,
)
def clip(request, hosts):
    """A pipeline, its call, and the latents that it makes."""
    family, dtype = request.param
    bench = import_module(f"wf_plugin_{family}.trial").bench()
    pipe = bench.pipeline()
    cast(pipe.transformer, dtype)
    call = {**bench.call, "output_type": "latent"}
    call = {key: value.to(dtype) if key.endswith("embeds") else value for key, value in call.items()}

    def make(pipe, steps=2):
        more = {"num_inference_steps": steps, "generator": torch.Generator().manual_seed(0)}
        return pipe(**(call | more)).frames

    with torch.no_grad():
        return SimpleNamespace(
            family=family, dtype=dtype, host=hosts[family], pipe=pipe, make=make, stock=make(pipe)
        )


def cast(model, dtype):
    """``model.to(dtype)`` complains of parts that ``from_pretrained`` would keep in fp32; there are none here."""
    for parameter in model.parameters():
        parameter.data = parameter.data.to(dtype)
    return model


@pytest.fixture
def served(monkeypatch):
    """As if every call were served by a kernel."""
    monkeypatch.setattr(gates, "why_not", lambda device: "")
    for module in (gated_residual, norm_modulate):
        monkeypatch.setattr(
            module, "plan", lambda *args, m=module: lambda *args: m.reference(*args).contiguous()
        )
    monkeypatch.setattr(feed_forward, "ineligible", lambda x, weight, bias: "")
    monkeypatch.setattr(feed_forward, "launch", feed_forward.reference)


def run(clip, request):
    with clip.host.session(clip.pipe, request, facts=ELSEWHERE, verify_contents=True) as session:
        out = clip.make(session.pipe)
        assert session.held_bytes() == 0
    assert not session.report["fallbacks"]
    assert {claim["state"] for claim in session.report["effective"].values()} == {"effective"}
    return out, {name: claim["evidence"] for name, claim in session.report["effective"].items()}


def test_residuals_in_place_are_stock_bit_for_bit(clip):
    ours, found = run(clip, {"inplace_residual": True})
    assert torch.equal(ours, clip.stock)
    counted = found["inplace-residual"]
    every, later = RESIDUALS[clip.family]
    assert counted["inplace_adds"] * every == (counted["inplace_adds"] + counted["fresh_adds"]) * later
    assert counted["bytes_avoided"] > 0


def test_fused_modulation_is_within_its_bound_and_writes_where_it_is_told_to(clip, served):
    alone, found = run(clip, {"fused_modulation": True})
    difference = float((alone - clip.stock).double().norm() / clip.stock.double().norm())
    assert difference <= BOUNDS[clip.dtype]
    assert (difference == 0) == (clip.dtype == torch.float32), "the roundings of bfloat16 are not stock's"
    both, beside = run(clip, {"fused_modulation": True, "inplace_residual": True})
    assert torch.equal(alone, both)
    counted = found["fused-modulation"]
    assert counted["norm_modulate_calls"] == counted["gated_residual_calls"] > 0
    assert beside["fused-modulation"] == counted
    every, later = RESIDUALS[clip.family]
    assert beside["inplace-residual"]["inplace_adds"] * every == counted["gated_residual_calls"] * later


@pytest.mark.parametrize("clip", [("cosmos", dtype) for dtype in BOUNDS], indirect=True, ids=str)
@pytest.mark.parametrize("beside", [{}, {"inplace_residual": True}], ids=["alone", "beside another claim"])
def test_the_layers_of_cosmos_norms_are_given_a_row_for_each_frame(clip, served, beside):
    """Three frames of four tokens: without the seam each of a block's three norms, and the head's, gets twelve rows."""
    seen = {}
    for request in (beside, {"fused_modulation": True, **beside}):
        with clip.host.session(clip.pipe, request, facts=ELSEWHERE) as session:
            rows = count_rows(session.pipe.transformer)
            clip.make(session.pipe)
            effective = session.report["effective"]
        seen["fused_modulation" in request] = rows
    steps, branches, norms = 2, 2, 3 * len(clip.pipe.transformer.transformer_blocks) + 1
    assert seen == {False: [12] * steps * branches * norms, True: [3] * steps * branches * norms}
    assert effective["fused-modulation"]["evidence"]["deduplicated_calls"] == steps * branches


def count_rows(root):
    """The rows that the first layer of every norm is given, in the order of its calls."""
    rows = []
    for path, module in root.named_modules():
        if path.endswith("linear_1") and "norm" in path:
            module.register_forward_pre_hook(lambda _, given: rows.append(given[0].shape[:-1].numel()))
    return rows


CACHES = {
    "firstblock": {"residual_diff_threshold": 10.0, "first": 0},
    "blocktaylorseer": {"pattern": [True, False], "first": 0, "last": 0},
}


@pytest.mark.parametrize("cache", CACHES)
@pytest.mark.parametrize("clip", [("cosmos", HALF), ("hunyuan", HALF)], indirect=True, ids=str)
def test_a_cache_keeps_what_it_would_keep_without(clip, cache):
    plugins = ("fused_wan", clip.family, "cache_blocks", "cache_taylorseer")
    host = host_of(*(f"wf_plugin_{name}" for name in plugins))
    request, clips = {"feature_cache": {"algorithm": cache, **CACHES[cache]}}, []
    for more in ({}, {"inplace_residual": True}):
        with host.session(clip.pipe, request | more) as session:
            clips.append(clip.make(session.pipe, steps=4))
    effective = session.report["effective"]
    assert torch.equal(*clips)
    assert effective[cache]["evidence"]["skipped"] > 0
    assert effective["inplace-residual"]["evidence"]["inplace_adds"] > 0


@pytest.mark.parametrize("clip", [("hunyuan", HALF)], indirect=True, ids=str)
def test_the_gelu_of_hunyuan_is_fused_in_both_streams(clip, served):
    ours, found = run(clip, {"fused_gelu": True})
    assert torch.equal(ours, clip.stock)
    steps, branches, blocks, streams = 2, 2, 2, 2
    assert found["fused-gelu"] == {"calls": steps * branches * blocks * streams}


@pytest.mark.parametrize("clip", [("cosmos", HALF)], indirect=True, ids=str)
def test_the_gelu_of_cosmos_is_another_and_is_refused(clip):
    with pytest.raises(Refused) as refused:
        clip.host.resolve(clip.pipe, {"fused_gelu": True}, facts=ELSEWHERE)
    reasons = {violation.code: violation.reason for violation in refused.value.refusal.violations}
    assert set(reasons) == {"WF-U014"}, "the reason, and not that the family is none of its own"
    assert "the feed-forwards of cosmos have the GELU of the error function" in reasons["WF-U014"]
    first = clip.pipe.transformer.transformer_blocks[0].ff
    assert "only tanh GELU" in feed_forward.foreign(first), "nor would the technique take it"


@pytest.mark.parametrize("clip", [("cosmos", dtype) for dtype in BOUNDS], indirect=True, ids=str)
def test_text_products_of_cosmos_are_kept(clip):
    ours, found = run(clip, {"static_cross_kv": True})
    assert torch.equal(ours, clip.stock)
    blocks, texts, layers, steps = 2, 2, 2, 2
    kept = found["static-cross-kv"]
    assert kept["texts"] == texts
    assert kept["misses"] == blocks * texts * layers
    assert kept["hits"] == (steps - 1) * kept["misses"]


# --- other forms of the models --------------------------------------------------------------------------------------


def noise(*shape, seed=3):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def with_control():
    """Transfer2.5: a context of text and image tokens, and what a control network adds after each block."""
    config = import_module("wf_plugin_cosmos.trial").TRANSFORMER
    width = config["num_attention_heads"] * config["attention_head_dim"]
    image = {"img_context_dim_in": 6, "img_context_num_tokens": 5, "img_context_dim_out": width}
    model = seeded(CosmosTransformer3DModel, **{**config, "controlnet_block_every_n": 1, **image})
    call = {
        "hidden_states": noise(1, 16, 2, 4, 6),
        "condition_mask": torch.ones(1, 1, 2, 4, 6),
        "encoder_hidden_states": (noise(1, 7, 20, seed=4), noise(1, 5, 6, seed=5)),
        "block_controlnet_hidden_states": [noise(1, 12, width, seed=6 + i) for i in range(2)],
        "return_dict": False,
    }
    return model, call, lambda t: torch.tensor([0.0001, t]).view(1, 1, 2, 1, 1)


def of_replaced_tokens():
    """HunyuanVideo, image to video: the tokens of the first frame have rows of their own."""
    config = import_module("wf_plugin_hunyuan.trial").TRANSFORMER
    model = seeded(HunyuanVideoTransformer3DModel, **{**config, "image_condition_type": "token_replace"})
    call = {
        "hidden_states": noise(1, 4, 2, 4, 6),
        "encoder_hidden_states": noise(1, 8, 16, seed=4),
        "encoder_attention_mask": (torch.arange(8) < 5).long().unsqueeze(0),
        "pooled_projections": noise(1, 8, seed=5),
        "guidance": torch.tensor([6000.0]),
        "return_dict": False,
    }
    return model, call, lambda t: torch.tensor([1000 * t])


def of_15():
    """HunyuanVideo-1.5."""
    model = models.hy15(target_size=64)
    call = {
        "hidden_states": noise(1, 9, 2, 4, 6),
        "encoder_hidden_states": noise(1, 8, 16, seed=4),
        "encoder_attention_mask": (torch.arange(8) < 5).long().unsqueeze(0),
        "encoder_hidden_states_2": noise(1, 4, 12, seed=5),
        "encoder_attention_mask_2": (torch.arange(4) < 2).long().unsqueeze(0),
        "image_embeds": noise(1, 3, 6, seed=6),
        "return_dict": False,
    }
    return model, call, lambda t: torch.tensor([1000 * t])


FORMS = {"control": with_control, "replaced tokens": of_replaced_tokens, "1.5": of_15}


def in_half(values):
    if isinstance(values, tuple | list):
        return type(values)(in_half(value) for value in values)
    return values.to(HALF) if isinstance(values, torch.Tensor) and values.is_floating_point() else values


@pytest.fixture(scope="module", params=FORMS)
def form(request, hosts):
    """A model alone in bfloat16, its calls at two steps, and what it gives."""
    model, call, timestep = FORMS[request.param]()
    cast(model, HALF)
    call = {name: in_half(value) for name, value in call.items()}
    calls = [{**call, "timestep": in_half(timestep(t))} for t in (0.75, 0.25)]
    with torch.no_grad():
        stock = [model(**call)[0] for call in calls]
    host = hosts["cosmos" if request.param == "control" else "hunyuan"]
    return SimpleNamespace(name=request.param, host=host, model=model, calls=calls, stock=stock)


def compute(form, request):
    facts = {**ELSEWHERE, "vae.class": "AutoencoderKLWan"}  # a model alone has none
    with form.host.session(form.model, request, facts=facts) as session:
        with session.run(num_inference_steps=len(form.calls)):
            ours = [session.model(**call)[0] for call in form.calls]
        report = session.report
    assert {claim["state"] for claim in report["effective"].values()} == {"effective"}
    assert not report["fallbacks"]
    return ours, {name: claim["evidence"] for name, claim in report["effective"].items()}


def test_residuals_of_every_form_in_place(form):
    ours, found = compute(form, {"inplace_residual": True})
    assert all(map(torch.equal, ours, form.stock))
    later = {"control": 2 * 2, "replaced tokens": 2, "1.5": 2 * 2}
    assert found["inplace-residual"]["inplace_adds"] == later[form.name] * len(form.calls)


def test_modulation_of_every_form(form, served):
    ours, found = compute(form, {"fused_modulation": True})
    for out, stock in zip(ours, form.stock, strict=True):
        assert 0 < (out - stock).double().norm() <= BOUNDS[HALF] * stock.double().norm()
    seams = {"control": 3 * 2, "replaced tokens": 2 * (2 * 2 + 2) + 2 * 2, "1.5": 2 * 2 * 2}[form.name]
    counted = found["fused-modulation"]
    assert counted["norm_modulate_calls"] == counted["gated_residual_calls"] == seams * len(form.calls)
    per_frame = {"control": len(form.calls)}
    assert counted.get("deduplicated_calls", 0) == per_frame.get(form.name, 0)


@pytest.mark.parametrize("form", ["control"], indirect=True)
def test_text_and_image_tokens_of_a_pair_are_kept(form):
    ours, found = compute(form, {"static_cross_kv": True})
    assert all(map(torch.equal, ours, form.stock))
    assert (found["static-cross-kv"]["misses"], found["static-cross-kv"]["hits"]) == (2 * 4, 2 * 4)
