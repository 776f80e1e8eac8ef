"""Faults that people met with other systems, as scenarios. The report each came from is named in its docstring."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.attention_dispatch import _AttentionBackendRegistry

from support import models
from support.counting import BlockCalls
from wf_core import Refused


def tea(threshold: float = 10.0, **options):
    """A TeaCache that skips whatever it may: the polynomial is the distance itself."""
    return {
        "feature_cache": {
            "algorithm": "teacache",
            "coefficients": [1.0, 0.0],
            "threshold": threshold,
            **options,
        }
    }


def drive(model, timesteps, *, seed=3, branches=("cond",), labelled=True, **size):
    """Call a session's model as a sampler would; the outputs by branch, in order."""
    outputs = {branch: [] for branch in branches}
    texts = {
        branch: models.w_inputs(seed=100 + 7 * len(branch))["encoder_hidden_states"] for branch in branches
    }
    texts = {branch: text * (1.0 if branch == "cond" else 5.0) for branch, text in texts.items()}
    for index, timestep in enumerate(timesteps):
        for branch in branches:
            inputs = models.w_inputs(seed=seed + index, timestep=timestep, **size)
            inputs["encoder_hidden_states"] = texts[branch]
            if labelled:
                with model.cache_context(branch):
                    outputs[branch].append(model(**inputs)[0])
            else:
                outputs[branch].append(model(**inputs)[0])
    return outputs


STEPS = (1000.0, 900.0, 800.0, 650.0, 500.0, 300.0)


def test_b09_a_cache_that_never_hits_is_inert_and_says_so(host):
    """vllm-omni#4632: zero hits, zero gain, no complaint."""
    base = models.w()
    with host.session(base, tea(threshold=1e-9)) as session:
        with BlockCalls(session.model) as seen, session.run(timesteps=STEPS):
            drive(session.model, STEPS)
        claim = session.report["effective"]["teacache"]
    assert claim["state"] == "inert"
    assert seen.count == len(STEPS) * 4


def test_b13_requests_of_different_size_in_one_session(host):
    """sglang#17140: the second request dies with a shape mismatch in the cache."""
    base = models.w()
    three = STEPS[:3]
    with host.session(base, tea()) as session:
        with session.run(timesteps=three):
            first = drive(session.model, three)
        with BlockCalls(session.model) as seen, session.run(timesteps=three):
            larger = drive(session.model, three, height=12)
        assert session.report["steps"]["caches"]["teacache"]["branches"]["transformer/cond"]["computed"] == [
            0,
            2,
        ]
        with session.run(timesteps=three):
            again = drive(session.model, three)
    assert seen.count == 2 * 4
    with host.session(base, tea()) as session, session.run(timesteps=three):
        larger_alone = drive(session.model, three, height=12)
    assert all(map(torch.equal, first["cond"], again["cond"]))
    assert all(map(torch.equal, larger["cond"], larger_alone["cond"]))


def test_b15_a_cancelled_run_does_not_break_the_next(host):
    """ComfyUI_Patches_ll#7: cancel the first run and every later run is broken until restart."""
    pipe = models.p1()
    arguments = models.call(num_inference_steps=6)

    def cancel(pipe, index, timestep, values):
        if index == 3:
            raise RuntimeError("cancelled")
        return values

    with host.session(pipe, tea()) as session:
        first = session.pipe(**models.fresh(arguments)).frames
        with pytest.raises(RuntimeError, match="cancelled"):
            session.pipe(**models.fresh(arguments), callback_on_step_end=cancel)
        assert session.report["run"]["state"] == "aborted"
        assert session.held_bytes() == 0
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, first)
        assert session.pipe(**models.fresh({**arguments, "height": 48})).frames.shape[-2] == 6


def test_b17_two_stages_of_other_length_and_size(host):
    """ComfyUI-TeaCache#17: 20 steps and then 8 at twice the size fails in the second."""
    base = models.w16()
    long = tuple(1000.0 - 45 * i for i in range(20))
    short = tuple(1000.0 - 110 * i for i in range(8))

    def stage(session, timesteps, size):
        with session.run(timesteps=timesteps):
            outputs = []
            for index, timestep in enumerate(timesteps):
                g = torch.Generator().manual_seed(index)
                latents = torch.randn(1, 16, 3, size, size, generator=g)
                text = torch.randn(1, 7, 16, generator=torch.Generator().manual_seed(1))
                call = {"hidden_states": latents, "timestep": torch.tensor([timestep])}
                with session.model.cache_context("cond"):
                    outputs.append(session.model(**call, encoder_hidden_states=text, return_dict=False)[0])
        return outputs, session.report["steps"]

    with host.session(base, tea()) as session:
        together = [stage(session, long, 4), stage(session, short, 8)]
    alone = []
    for case in ((long, 4), (short, 8)):
        with host.session(base, tea()) as session:
            alone.append(stage(session, *case))
    for (outputs, steps), (expected, expected_steps) in zip(together, alone, strict=True):
        assert all(map(torch.equal, outputs, expected))
        assert steps == expected_steps
    totals = [steps["total"] for _, steps in together]
    assert totals == [20, 8]
    for (_, steps), total in zip(together, totals, strict=True):
        computed = steps["caches"]["teacache"]["branches"]["transformer/cond"]["computed"]
        assert computed[0] == 0 and computed[-1] == total - 1


def test_b19_a_plugin_for_one_model_never_reaches_another(host):
    """ComfyUI-KJNodes#269: a kernel patch meant for one model also hits a second."""
    base, other = models.w(), models.hy()
    inputs = models.hy_inputs()
    sdpa, registry = F.scaled_dot_product_attention, dict(_AttentionBackendRegistry._backends)
    before = other(**inputs, return_dict=False)[0]
    with host.session(base, {"attention_backend": "math"}) as session:
        with session.run(timesteps=STEPS[:1]):
            drive(session.model, STEPS[:1])
        assert torch.equal(other(**inputs, return_dict=False)[0], before)
        assert F.scaled_dot_product_attention is sdpa
        attempts = session.report["effective"]["math"]["evidence"]["attempts"]
    assert attempts == 4 * 2, "the plugin sees its own model's calls and no others"
    assert torch.equal(other(**inputs, return_dict=False)[0], before)
    assert F.scaled_dot_product_attention is sdpa
    assert dict(_AttentionBackendRegistry._backends) == registry


def test_b19_closing_while_the_other_model_is_in_the_middle_of_a_request(host):
    base, other = models.w(), models.hy()
    inputs = models.hy_inputs()
    before = other(**inputs, return_dict=False)[0]
    session = host.session(base, {"attention_backend": "math"})
    hook = other.transformer_blocks[1].register_forward_pre_hook(lambda *_: session.close())
    during = other(**inputs, return_dict=False)[0]
    hook.remove()
    assert session.closed
    assert torch.equal(during, before)


def test_b25_branches_have_separate_state(host):
    """vllm-omni#2860: cond and uncond shared one state. The oracle is one model per branch."""
    base = models.w()
    both = ("cond", "uncond")
    with host.session(base, tea()) as session:
        with session.run(timesteps=STEPS):
            outputs = drive(session.model, STEPS, branches=both)
        assert session.report["effective"]["teacache"]["state"] == "effective"
    for branch in both:
        with host.session(base, tea()) as session, session.run(timesteps=STEPS):
            oracle = drive(session.model, STEPS, branches=(branch,))
        assert all(map(torch.equal, outputs[branch], oracle[branch])), branch


def test_b25_a_threshold_that_never_skips_is_the_plain_result(host):
    base = models.w()
    both = ("cond", "uncond")
    plain = drive(base, STEPS, branches=both)
    with host.session(base, tea(threshold=1e-9)) as session, session.run(timesteps=STEPS):
        outputs = drive(session.model, STEPS, branches=both)
    for branch in both:
        assert all(map(torch.equal, outputs[branch], plain[branch]))


def test_b27_a_guidance_interval_labels_every_call_right(host):
    """sglang#16396: the branch was told from the parity of a call counter."""
    base = models.w()
    timesteps = tuple(1000.0 - 90 * i for i in range(10))

    def interval(session, uncond_steps):
        with session.run(timesteps=timesteps):
            for index, timestep in enumerate(timesteps):
                inputs = models.w_inputs(seed=index, timestep=timestep)
                with session.model.cache_context("cond"):
                    session.model(**inputs)
                if index in uncond_steps:
                    with session.model.cache_context("uncond"):
                        session.model(**inputs)
        return session.report["steps"]

    request = tea()
    with host.session(base, request) as session:
        steps = interval(session, range(3, 8))
        without = interval(session, ())
    assert steps["calls"] == {"transformer/cond": 10, "transformer/uncond": 5}
    branches = steps["caches"]["teacache"]["branches"]
    assert branches["transformer/cond"] == without["caches"]["teacache"]["branches"]["transformer/cond"]
    uncond = branches["transformer/uncond"]
    assert sorted(uncond["computed"] + uncond["skipped"]) == [3, 4, 5, 6, 7]
    assert uncond["reasons"]["3"] == "nothing-cached"


def test_b27_two_experts_without_guidance(host):
    """Baseline: guidance 1 makes calls of one branch only, so parity labels half of them wrongly."""
    pipe = models.p2()
    with host.session(pipe, tea()) as session:
        session.pipe(**models.call(num_inference_steps=10, guidance_scale=1.0))
        steps = session.report["steps"]
    assert steps["calls"] == {"transformer/cond": 3, "transformer_2/cond": 7}
    branches = steps["caches"]["teacache"]["branches"]
    assert branches["transformer/cond"]["computed"] == [0]
    assert branches["transformer_2/cond"]["computed"] == [3, 9]
    assert branches["transformer_2/cond"]["reasons"]["3"] in ("expert-start", "nothing-cached")


def test_b29_a_driver_without_labels_is_one_branch_and_two_conditionings_compute_densely(host):
    """diffusers#12012: the cache raises at the first forward where the pipeline labels nothing."""
    base = models.w()
    with host.session(base, tea()) as session:
        with session.run(timesteps=STEPS):
            drive(session.model, STEPS, labelled=False)
        assert session.report["identity"] == "ordinal"
        assert session.report["effective"]["teacache"]["state"] == "effective"
        plain = drive(base, STEPS, branches=("cond", "uncond"), labelled=False)
        with session.run(timesteps=STEPS):
            outputs = drive(session.model, STEPS, branches=("cond", "uncond"), labelled=False)
        report = session.report
    assert report["identity"].startswith("ambiguous")
    assert report["effective"]["teacache"]["state"] in ("inert", "partial")
    assert report["fallbacks"]
    for branch in ("cond", "uncond"):
        assert torch.equal(outputs[branch][-1], plain[branch][-1])


def test_b31_sizes_off_the_true_grid_are_refused_with_the_nearest(host):
    """diffusers#13034: checked against 16 where this model needs 32."""
    pipe = models.quiet(
        type(models.p1())(
            tokenizer=None,
            text_encoder=None,
            transformer=models.w16(),
            vae=models.v22(),
            scheduler=models.euler(),
            expand_timesteps=True,
        )
    )
    with host.session(pipe, {}) as session:
        with pytest.raises(Refused, match=r"32") as caught:
            session.pipe(**models.call(height=48, width=64))
        assert "48" in str(caught.value)
        session.pipe(**models.call(height=32, width=64))
        facts = session.report["run"]["facts"]
    assert (facts["run.height"], facts["run.width"], facts["run.tokens"]) == (32, 64, 6)


@pytest.mark.parametrize(("tile", "stride"), [(4, 3), (8, 6), (16, 12)])
def test_b59_tiled_decode_of_the_patched_vae(host, tile, stride):
    """diffusers#12191: tiled decode crashes on the Wan 2.2 VAE."""
    pipe = models.p1(vae=models.v22())
    latents = torch.randn(1, 16, 3, 8, 12, generator=torch.Generator().manual_seed(2))
    video = torch.rand(1, 3, 9, 128, 192, generator=torch.Generator().manual_seed(3))
    plain = pipe.vae.decode(latents).sample
    state = dict(pipe.vae.__dict__)
    request = {
        "vae_spatial_tiling": True,
        "vae_tile_size": [tile, tile],
        "vae_tile_stride": [stride, stride],
    }
    with host.session(pipe, request) as session, session.run():
        decoded = session.pipe.vae.decode(latents).sample
        assert session.pipe.vae.encode(video).latent_dist.mode().shape == (1, 16, 3, 8, 12)
    assert decoded.shape == (1, 3, 9, 128, 192)
    assert torch.equal(decoded, plain) == (tile == 16)
    assert torch.equal(pipe.vae.decode(latents).sample, plain)
    assert {k: v for k, v in pipe.vae.__dict__.items() if k.startswith(("tile", "use_"))} == {
        k: v for k, v in state.items() if k.startswith(("tile", "use_"))
    }


def test_b83_held_bytes_are_what_the_collector_finds(host):
    """ComfyUI-SeedVR2#534: the store that reports and the one that holds are not the same."""
    base = models.w()
    with host.session(base, tea()) as session:
        with session.run(timesteps=STEPS):
            drive(session.model, STEPS[:3], branches=("cond", "uncond"))
            residual_bytes = 48 * 24 * 4
            assert session.held_bytes() == 2 * residual_bytes
            assert _tensors_of_shape((1, 48, 24)) >= 2
        assert session.held_bytes() == 0
        with pytest.raises(RuntimeError, match="abort"), session.run(timesteps=STEPS):
            drive(session.model, STEPS[:2])
            raise RuntimeError("abort")
        assert session.held_bytes() == 0
        assert session.report["memory"] == {"held_bytes_at_end": residual_bytes, "held_bytes": 0}
        model = weakref.ref(session.model)
    assert session.held_bytes() == 0
    del session
    gc.collect()
    assert model() is None, "the copy must be freed with its session"
    assert _tensors_of_shape((1, 48, 24)) == 0


def _tensors_of_shape(shape):
    gc.collect()
    return sum(1 for item in gc.get_objects() if type(item) is torch.Tensor and tuple(item.shape) == shape)


def test_b85_a_missing_expert_is_refused_before_any_model_call(host):
    """diffusers#12126: 'None has no attribute ...' when the pipeline switches to its second expert."""
    pipe = models.p2(low=False)
    calls = []
    pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
    with pytest.raises(Refused, match="transformer_2"):
        with host.session(pipe, tea()) as session:
            session.pipe(**models.call(num_inference_steps=10))
    assert calls == []


def test_b85_only_the_low_noise_expert_is_legal_where_only_it_is_needed(host):
    pipe = models.quiet(
        type(models.p2())(
            tokenizer=None,
            text_encoder=None,
            transformer=None,
            transformer_2=models.w16(seed=5),
            vae=models.v21(),
            scheduler=models.euler(),
            boundary_ratio=1.5,
        )
    )
    plain = pipe(**models.call()).frames
    with host.session(pipe, tea()) as session:
        session.pipe(**models.call())
        assert session.report["steps"]["calls"] == {"transformer_2/cond": 4, "transformer_2/uncond": 4}
    with host.session(pipe, {}) as session:
        assert torch.equal(session.pipe(**models.call()).frames, plain)
