"""Real sessions: tiny random models of every Wan recipe, and tiny-wan, which is trained."""

from __future__ import annotations

import math
from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from diffusers import WanVACETransformer3DModel
from taylor_fakes import KINDS

from support import models
from wf_core import Refused
from wf_core.testing import load_pipeline, seeded

both = pytest.mark.parametrize("kind", KINDS)
recipes = pytest.mark.parametrize("recipe", models.RECIPES)


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def request_of(kind, every=2, order=1, first=0, last=0):
    common = {"order": order, "first": first, "last": last}
    if kind == "taylorseer":
        return {"taylorseer": {"interval": every, **common}}
    pattern = [True] + [False] * (every - 1)
    return {"feature_cache": {"algorithm": "blocktaylorseer", "pattern": pattern, **common}}


def recipe_of(name, **changes):
    """The pipeline and a call of at least four steps, whose frames are tensors or arrays."""
    pipe, arguments = models.RECIPES[name]()
    steps = max(4, arguments["num_inference_steps"])
    return pipe, {**arguments, "num_inference_steps": steps, "output_type": "latent", **changes}


def run(pipe, arguments, **changes):
    return pipe(**{**models.fresh(arguments), **changes}).frames


def blocks_of(transformer):
    return [*transformer.blocks, *getattr(transformer, "vace_blocks", ())]


@contextmanager
def counting(*transformers):
    """Calls of the modules that do a block's work, by name."""
    seen, hooks = Counter(), []

    def count(name):
        return lambda *_: seen.update([name])

    for transformer in transformers:
        for block in blocks_of(transformer):
            for name in ("attn1", "attn2", "ffn", "norm1", "norm2", "norm3"):
                hooks.append(getattr(block, name).register_forward_hook(count(name)))
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()


def experts_of(pipe):
    return [
        root for name in ("transformer", "transformer_2") if (root := getattr(pipe, name, None)) is not None
    ]


@both
@recipes
def test_never_skipping_is_the_plain_run(host, kind, recipe):
    pipe, arguments = recipe_of(recipe)
    plain = run(pipe, arguments)
    with host.session(pipe, request_of(kind, every=1), verify_contents=True) as session:
        assert torch.equal(run(session.pipe, arguments), plain)
        claim, report = session.report["effective"][kind], session.report
    assert claim["state"] == "inert"
    assert claim["evidence"].get("skipped", 0) == 0
    assert "are computed" in report["fallbacks"][0]["reason"]


@both
@recipes
def test_it_skips_on_every_recipe_and_leaves_the_base_alone(host, kind, recipe):
    pipe, arguments = recipe_of(recipe)
    plain = run(pipe, arguments)
    with host.session(pipe, request_of(kind), verify_contents=True) as session:
        with counting(*experts_of(session.pipe)) as seen:
            first = run(session.pipe, arguments)
        report = session.report
        again = run(session.pipe, arguments)
    claim = report["effective"][kind]
    evidence = claim["evidence"]
    assert claim["state"] == "effective" and not report["fallbacks"]
    assert torch.isfinite(first).all()
    assert not torch.equal(first, plain)
    assert torch.equal(first, again)
    assert torch.equal(run(pipe, arguments), plain)
    work = len(blocks_of(pipe.transformer))
    assert evidence["skipped"] > 0
    assert seen["attn1"] == seen["attn2"] == seen["ffn"] == work * evidence["computed"]
    assert seen["norm1"] == seen["norm2"] == seen["norm3"] == work * evidence["computed"]
    if kind == "blocktaylorseer":
        assert evidence["predicted_outputs"] == 3 * work * evidence["skipped"]
    assert report["memory"]["held_bytes_at_end"] > 0
    assert report["memory"]["held_bytes"] == 0


def test_two_experts_each_start_computed(host):
    pipe, arguments = recipe_of("two_experts", num_inference_steps=10)
    for kind in KINDS:
        with host.session(pipe, request_of(kind, every=4, last=1)) as session:
            run(session.pipe, arguments)
            branches = session.report["steps"]["caches"][kind]["branches"]
        switch = len(branches["transformer/cond"]["reasons"])
        assert 1 < switch < 9
        low = branches["transformer_2/cond"]
        assert low["computed"][0] == switch and low["reasons"][str(switch)] in (
            "expert-start",
            "interval",
            "pattern",
        )
        assert low["computed"] == sorted({switch, 9, *(step for step in (4, 8) if step >= switch)})
        assert branches["transformer_2/uncond"] == low


@both
@pytest.mark.parametrize("recipe", ["t2v", "vace"])
def test_held_memory_is_the_formulas(host, kind, recipe):
    pipe, arguments = recipe_of(recipe)
    with host.session(pipe, request_of(kind)) as session:
        run(session.pipe, arguments)
        report = session.report
    facts = report["run"]["facts"]
    config = pipe.transformer.config
    hidden_state = facts["run.tokens"] * config.num_attention_heads * config.attention_head_dim
    sequences = 1 if kind == "taylorseer" else 3 * len(blocks_of(pipe.transformer))
    assert report["memory"]["held_bytes_at_end"] == 2 * 2 * sequences * hidden_state * 4


def test_it_attaches_to_every_branch_of_every_block(host):
    """What cannot find the blocks is refused at the opening; here all sites of the model are taken, and each counts."""
    for recipe, work in (("t2v", 3), ("i2v", 2), ("vace", 4), ("two_experts", 6)):
        pipe, _ = recipe_of(recipe)
        with host.session(pipe, request_of("blocktaylorseer")) as session:
            attached = session._opened.wiring.seams.attached("blocktaylorseer")
        stacks = len(experts_of(pipe))
        assert attached == stacks + 2 * 3 * work, recipe


VACE_CONFIG = {**models.W_CONFIG, "num_layers": 4, "vace_layers": [0, 2], "vace_in_channels": 4}


def inputs_of(base):
    """One call, the same at every step."""
    arguments, g = models.w_inputs(), torch.Generator().manual_seed(5)
    if isinstance(base, WanVACETransformer3DModel):
        arguments["control_hidden_states"] = torch.randn(1, 4, 3, 8, 8, generator=g)
        arguments["control_hidden_states_scale"] = torch.tensor([0.7, 1.3])
    if base.config.image_dim is not None:
        arguments["encoder_hidden_states"] = torch.randn(1, models.I2V_TEXT, 16, generator=g)
        arguments["encoder_hidden_states_image"] = torch.randn(1, 257, 4, generator=g)
    return arguments


BASES = {
    "w": models.w,
    "vace": lambda: seeded(WanVACETransformer3DModel, **VACE_CONFIG),
    "i2v": lambda: models.w(image_dim=4, added_kv_proj_dim=24, num_layers=2),
}


@both
@pytest.mark.parametrize("base", BASES)
def test_a_step_like_the_computed_one_gives_what_it_gave(host, kind, base):
    """The same call at a skipped step. VACE's hints come out once; of image-to-video the sum of both attentions."""
    model = BASES[base]()
    arguments = inputs_of(model)
    with host.session(model, request_of(kind)) as session:
        outputs = []
        with session.run(num_inference_steps=3):
            for _ in range(2):
                with counting(session.model) as seen, session.model.cache_context("cond"):
                    outputs.append(session.model(**arguments)[0])
        assert not seen, "the second call computed something"
    if kind == "blocktaylorseer":
        assert torch.equal(outputs[0], outputs[1])
    else:
        assert torch.allclose(outputs[0], outputs[1], rtol=0, atol=1e-5)
    assert torch.equal(outputs[0], model(**arguments)[0])


@both
def test_the_gates_and_the_head_are_those_of_the_skipped_step(host, kind):
    """At another timestep the same kept values come out through another modulation."""
    model = models.w()
    with host.session(model, request_of(kind, every=4)) as session:
        outputs = []
        with session.run(num_inference_steps=8):
            for timestep in (900.0, 500.0, 500.0):
                with session.model.cache_context("cond"):
                    outputs.append(session.model(**models.w_inputs(timestep=timestep))[0])
    assert torch.equal(outputs[1], outputs[2])
    assert not torch.allclose(outputs[0], outputs[1])


@both
def test_without_guidance_there_is_one_branch(host, kind):
    pipe, arguments = recipe_of("t2v", guidance_scale=1.0)
    with host.session(pipe, request_of(kind)) as session:
        run(session.pipe, arguments)
        branches = session.report["steps"]["caches"][kind]["branches"]
    assert {name: row["skipped"] for name, row in branches.items()} == {"transformer/cond": [1, 3]}


@both
def test_requests_back_to_back_equal_fresh_sessions(host, kind):
    pipe, first = recipe_of("t2v")
    second = {**first, "height": 48, "num_inference_steps": 7}

    def alone(arguments):
        with host.session(pipe, request_of(kind)) as session:
            return run(session.pipe, arguments)

    with host.session(pipe, request_of(kind)) as session:
        got = [run(session.pipe, arguments) for arguments in (first, second, first)]
    assert all(map(torch.equal, got, [alone(first), alone(second), alone(first)]))


@both
def test_after_an_exception_the_same_call_gives_the_same(host, kind):
    pipe, arguments = recipe_of("t2v")

    def stop(_pipe, index, _timestep, _tensors):
        if index == 2:
            raise RuntimeError("stopped")
        return {}

    with host.session(pipe, request_of(kind), verify_contents=True) as session:
        wanted = run(session.pipe, arguments)
        with pytest.raises(RuntimeError, match="stopped"):
            run(session.pipe, arguments, callback_on_step_end=stop)
        assert session.report["run"]["state"] == "aborted"
        assert session.held_bytes() == 0
        assert torch.equal(run(session.pipe, arguments), wanted)


@both
def test_bfloat16(host, kind):
    pipe, arguments = models.RECIPES["ti2v"](torch.bfloat16)
    arguments = {**arguments, "output_type": "latent"}
    with host.session(pipe, request_of(kind)) as session:
        frames = run(session.pipe, arguments)
        evidence = session.report["effective"][kind]["evidence"]
    assert torch.isfinite(frames).all()
    assert evidence["skipped"] == 4


def test_a_run_that_cannot_fit_is_refused_before_any_model_call(host):
    pipe, arguments = recipe_of("t2v")
    small = {"device.memory_bytes": 10_000, "device.count": 1}
    with host.session(pipe, request_of("blocktaylorseer"), facts=small) as session:
        with (
            counting(session.pipe.transformer) as seen,
            pytest.raises(Refused, match=r"9 outputs of blocks"),
        ):
            run(session.pipe, arguments)
    assert not seen
    with host.session(pipe, request_of("taylorseer"), facts=small) as session:
        run(session.pipe, arguments)


# --- tiny-wan ------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def tiny(host):
    return models.quiet(load_pipeline(host.model_directory("tiny-wan")))


ARGUMENTS = {
    "prompt": "a red 3 moving left",
    "height": 128,
    "width": 128,
    "num_frames": 5,
    "num_inference_steps": 8,
    "guidance_scale": 3.0,
    "output_type": "pt",
}
BOUND = 26


@pytest.fixture(scope="module")
def plain(tiny):
    with torch.no_grad():
        return tiny(**ARGUMENTS, generator=torch.Generator().manual_seed(0)).frames


def psnr(ours, theirs):
    error = float((ours - theirs).double().square().mean())
    return -10 * math.log10(error) if error else math.inf


@both
def test_tiny_wan_stays_near_the_plain_clip(host, tiny, plain, kind):
    with host.session(tiny, request_of(kind, first=3, last=1)) as session:
        ours = session.pipe(**ARGUMENTS, generator=torch.Generator().manual_seed(0)).frames
        claim = session.report["effective"][kind]
    assert claim["state"] == "effective"
    assert (claim["evidence"]["computed"], claim["evidence"]["skipped"]) == (12, 4)
    assert BOUND < psnr(ours, plain) < math.inf
