"""Faults that people met with other systems, on models of several families: masks of text, calls without a label, sizes
that a pipeline changes by itself. The report each came from is named in its docstring.
"""

from __future__ import annotations

from functools import partial

import pytest
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    FirstBlockCacheConfig,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideoImageToVideoPipeline,
)
from PIL import Image

from support import models
from support.plugins import write_plugin
from wf_core import Refused
from wf_core.api import PluginFault
from wf_core.testing import fingerprint, seeded
from wf_plugin_hunyuan.trial import VAE, embeds

MASKLESS = """
kind = "attention-provider"
summary = "A kernel without a mask argument"

[[feature]]
name = "maskless"
tier = "equivalent"
tolerance = "plain matrix products: relative L2 error against float64 at most 1e-5 in float32"
summary = "Refuses a call with a mask, and counts."
slot = "attention"
seams = ["attention"]
evidence = [{ counter = "successes", at_least = 1 }]
select = [{ switch = "attention_backend", values = ["maskless"] }]
example = { attention_backend = "maskless" }
"""
MASKLESS_CODE = """
from wf_core.api import AttentionProvider, Ineligible, hookimpl


class Maskless(AttentionProvider):
    def attend(self, query, key, value, mask):
        if mask is not None:
            raise Ineligible("the kernel takes no mask")
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        scores = q @ k.transpose(-1, -2) * query.shape[-1] ** -0.5
        return (scores.softmax(-1) @ v).transpose(1, 2)


@hookimpl
def wf_attention_provider(feature, options, facts):
    return Maskless()
"""
TOKENS = """
kind = "fusion"
summary = "Something that needs its tokens in groups"

[[feature]]
name = "grouped"
tier = "exact"
summary = "Passes calls through."
seams = ["denoiser"]
effects = ["inference-only"]
evidence = [{ counter = "calls", at_least = 1 }]
example = { grouped = 3 }

[[feature.option]]
name = "size"
type = "int"
min = 1
doc = "Tokens in a group."

[[feature.condition]]
code = "GROUP-1"
fact = "run.tokens"
divisible_by = { option = "size" }
reason = "{value} tokens cannot be cut into groups: choose another size."

[[switch]]
name = "grouped"
feature = "grouped"
form = "value"
option = "size"
doc = "Tokens in a group."
"""
TOKENS_CODE = """
from wf_core.api import Technique, hookimpl


class Grouped(Technique):
    def handlers(self):
        return {"denoiser": self.count}

    def count(self, inner, site, call):
        self.counters.add("calls")
        return inner(call)


@hookimpl
def wf_fusion(feature, options, facts):
    return Grouped()
"""

# --- B07 -------------------------------------------------------------------------------------------------------------


@pytest.fixture
def maskless(host_with):
    return host_with(partial(write_plugin, name="attention-maskless", manifest=MASKLESS, code=MASKLESS_CODE))


@pytest.fixture(scope="module")
def hy():
    """HY as the scenarios have it, in patches of one latent."""
    return models.hy(patch_size=1)


def overwritten(inputs):
    """The same call with 999 in every text token that its mask leaves out."""
    text, mask = inputs["encoder_hidden_states"], inputs["encoder_attention_mask"].bool()
    return {**inputs, "encoder_hidden_states": text.where(mask[:, :, None], torch.tensor(999.0))}


def sample(model, inputs):
    with torch.no_grad():
        return model(**{**inputs, "return_dict": False})[0]


def apart(one, other):
    return float((one - other).abs().max())


@pytest.mark.parametrize("patch", [1, 2])
def test_b07_the_trap_is_real(patch):
    """diffusers#12605. Plain HunyuanVideo does not move with its padding; without the mask it moves a little."""
    hy, inputs = models.hy(patch_size=patch), models.hy_inputs()
    plain = sample(hy, inputs)
    assert apart(sample(hy, overwritten(inputs)), plain) <= 1e-5
    full = torch.ones_like(inputs["encoder_attention_mask"])
    assert 0.01 < apart(sample(hy, {**inputs, "encoder_attention_mask": full}), plain) < 0.1


def test_b07_a_kernel_without_a_mask_argument_is_given_no_masked_token(maskless, hy):
    """diffusers#12605: the mask is dropped and full attention computed. Here the padding goes, and the mask with it."""
    inputs, before = models.hy_inputs(), fingerprint(hy, contents=True)
    plain = sample(hy, inputs)
    with maskless.session(hy, {"attention_backend": "maskless"}, verify_contents=True) as session:
        outputs = []
        for given in (inputs, overwritten(inputs)):
            with session.run(timesteps=(500.0,)):
                outputs.append(sample(session.model, given))
            claim = session.report["effective"]["maskless"]
            assert claim["state"] == "effective"
            assert claim["evidence"]["successes"] == claim["evidence"]["attempts"] == 4, "one for each block"
            assert session.report["fallbacks"] == []
    assert apart(outputs[0], plain) <= 1e-5
    assert apart(outputs[1], outputs[0]) <= 1e-5
    assert before.diff(fingerprint(hy, contents=True), run_state=False) == []
    assert torch.equal(sample(hy, inputs), plain)


def ragged():
    """Two samples with 4 and 6 valid text tokens: no cut does away with the mask."""
    one = models.hy_inputs()
    both = {name: torch.cat([value, value]) for name, value in one.items()}
    return {**both, "encoder_attention_mask": torch.tensor([[1, 1, 1, 1, 0, 0], [1] * 6])}


def test_b07_where_a_mask_is_left_the_kernel_refuses_the_call_or_the_stock_one_takes_it(maskless, hy):
    inputs = ragged()
    plain = sample(hy, inputs)
    assert apart(plain[0], plain[1]) > 0.01, "the mask counts"
    with maskless.session(hy, {"attention_backend": "maskless"}) as session:
        with pytest.raises(PluginFault, match="the kernel takes no mask"), session.run(timesteps=(500.0,)):
            sample(session.model, inputs)
    request = {"attention_backend": "maskless", "on_ineligible": "dense"}
    with maskless.session(hy, request) as session:
        for given in (inputs, overwritten(inputs)):
            with session.run(timesteps=(500.0,)):
                assert apart(sample(session.model, given), plain) <= 1e-5
        [fallback] = session.report["fallbacks"]
        assert (fallback["feature"], fallback["count"]) == ("maskless", 4)
        assert "takes no mask" in fallback["reason"]
        assert session.report["effective"]["maskless"]["state"] == "inert"


def test_b07_text_of_wan_has_no_mask_and_stays_legal(maskless):
    base = models.w()
    with maskless.session(base, {"attention_backend": "maskless"}) as session:
        with session.run(timesteps=(500.0,)):
            out = sample(session.model, models.w_inputs())
        assert session.report["effective"]["maskless"]["evidence"]["successes"] == 4 * 2
    assert apart(out, sample(base, models.w_inputs())) <= 1e-5


# --- B29 -------------------------------------------------------------------------------------------------------------


def hunyuan_image_to_video():
    """The sibling that labels nothing: its text-to-video pipeline enters a context around each call."""
    transformer = models.hy(
        in_channels=4, guidance_embeds=True, image_condition_type="token_replace", patch_size=2
    )
    pipe = HunyuanVideoImageToVideoPipeline(
        text_encoder=None,
        tokenizer=None,
        text_encoder_2=None,
        tokenizer_2=None,
        image_processor=None,
        transformer=transformer,
        vae=seeded(AutoencoderKLHunyuanVideo, **VAE),
        scheduler=FlowMatchEulerDiscreteScheduler(shift=7.0),
    )
    call = {
        **embeds(),
        **embeds(8, 3, "negative_"),
        "image": Image.new("RGB", (32, 32), (200, 30, 60)),
        "height": 32,
        "width": 32,
        "num_frames": 5,
        "num_inference_steps": 6,
        "true_cfg_scale": 3.0,
        "output_type": "latent",
    }
    return models.quiet(pipe), call


def wan_video_to_video():
    pipe, call = models.v2v()
    return pipe, {**call, "output_type": "latent", "strength": 1.0, "num_inference_steps": 6}


SIBLINGS = {"hunyuan-i2v": hunyuan_image_to_video, "wan-v2v": wan_video_to_video}
CACHES = {
    "firstblock": {"residual_diff_threshold": 1e9, "first": 2, "last": 1},
    "easycache": {"threshold": 1e9, "first": 2, "last": 1},
    "taylorseer": {"interval": 2, "first": 2, "last": 1},
}
NEVER = {
    "firstblock": {"residual_diff_threshold": 0.0},
    "easycache": {"threshold": 0.0},
    "taylorseer": {"interval": 1},
}


@pytest.fixture(scope="module", params=SIBLINGS)
def sibling(request):
    """A pipeline that enters no cache context, a short call with two branches, and what it gives by itself."""
    pipe, call = SIBLINGS[request.param]()
    call.pop("generator", None)
    return pipe, call, frames(pipe, call)


def frames(pipe, call):
    return pipe(**call, generator=torch.Generator().manual_seed(0)).frames


def test_b29_the_trap_is_real():
    """diffusers#12012: the library's own cache raises at the first forward."""
    pipe, call = hunyuan_image_to_video()
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises(ValueError, match="context"):
        frames(pipe, call)


@pytest.mark.parametrize("name", CACHES)
def test_b29_a_cache_on_a_pipeline_that_labels_nothing(host, sibling, name):
    """diffusers#12012. The number of the call says what the pipeline does not, as soon as there are two branches."""
    pipe, call, plain = sibling
    calls = []
    with host.session(pipe, {"feature_cache": {"algorithm": name, **CACHES[name]}}) as session:
        session.pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
        out = frames(session.pipe, call)
        report = session.report
    total = len(calls) // 2
    assert total == 6
    assert report["identity"] == "ordinal"
    claim, branches = report["effective"][name], report["steps"]["caches"][name]["branches"]
    assert claim["state"] == "effective"
    assert set(branches) == {"transformer/cond", "transformer/uncond"}
    for found in branches.values():
        assert {0, 1, 5} <= {*found["computed"]}
        assert sorted([*found["computed"], *found["skipped"]]) == list(range(total))
    assert claim["evidence"]["skipped"] == sum(len(found["skipped"]) for found in branches.values()) > 0
    assert torch.isfinite(out).all() and not torch.equal(out, plain)
    with host.session(pipe, {"feature_cache": {"algorithm": name, **NEVER[name]}}) as session:
        assert torch.equal(frames(session.pipe, call), plain)
    assert torch.equal(frames(pipe, call), plain)


# --- B31 -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def ti2v():
    """P1 on the 2.2 VAE, with timesteps per token: 16 pixels per latent and 2 latents per token."""
    pipe = models.p1(vae=models.v22())
    pipe.register_to_config(expand_timesteps=True)
    return pipe


@pytest.fixture
def grouped(host_with):
    return host_with(partial(write_plugin, name="fusion-grouped", manifest=TOKENS, code=TOKENS_CODE))


def test_b31_the_trap_is_real(ti2v):
    """diffusers#13034: 48 quietly becomes 32."""
    assert ti2v(**models.call(height=48, width=64)).frames.shape[-3:] == (3, 2, 4)


def test_b31_the_size_that_cannot_be_made_is_refused_while_resolving_and_at_the_call(grouped, ti2v):
    calls = []
    with pytest.raises(Refused, match="48 is not a multiple of 32"):
        grouped.resolve(ti2v, {"grouped": 3}, run={"height": 48, "width": 64, "num_frames": 9})
    with grouped.session(ti2v, {"grouped": 3}) as session:
        session.pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
        with pytest.raises(Refused, match="48 is not a multiple of 32"):
            session.pipe(**models.call(height=48, width=64))
    assert not calls


@pytest.mark.parametrize(("size", "fits"), [(3, True), (6, True), (4, False), (9, False)])
def test_b31_what_needs_a_number_of_tokens_is_judged_by_those_of_the_effective_size(
    grouped, ti2v, size, fits
):
    """48x64 would have 9 tokens at half its true unit; 32x64 has 6, in 3x2x4 latents."""
    run, call = {"height": 32, "width": 64, "num_frames": 9}, models.call(height=32, width=64)
    with grouped.session(ti2v, {"grouped": size}) as session:
        if fits:
            assert grouped.resolve(ti2v, {"grouped": size}, run=run).feature("grouped").pending == ()
            assert session.pipe(**call).frames.shape[-3:] == (3, 2, 4)
            assert session.report["run"]["facts"]["run.tokens"] == 6
        else:
            with pytest.raises(Refused, match="6 tokens cannot be cut into groups"):
                grouped.resolve(ti2v, {"grouped": size}, run=run)
            with pytest.raises(Refused, match="6 tokens cannot be cut into groups"):
                session.pipe(**call)
