"""Text products kept for a run: the plain clip bit for bit, counted, and nothing given back that is another text's."""

from __future__ import annotations

from collections import Counter

import pytest
import torch
from fused_by_hand import ready
from torch import nn

from support import models
from wf_core.api import Site
from wf_core.testing import host_of
from wf_plugin_fused_wan.cross_kv import GRADIENTS, StaticTextProducts
from wf_plugin_fused_wan.texts import INFERENCE, read_call

REQUEST = {"static_cross_kv": True}


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


class ByHand:
    """One technique around a model of one layer, whose context is made anew at each call, as the real ones do."""

    def __init__(self):
        self.technique = ready(StaticTextProducts())
        self.handlers = self.technique.handlers()
        self.layer = nn.Linear(4, 3)
        self.computed = 0

    def call(self, text, root="transformer", change=None, **arguments):
        """What the layer gives, seen through both seams. ``change`` is applied to the context before the layer."""

        def model(arguments):
            context = arguments["encoder_hidden_states"] * 2
            context = change(context) if change else context
            return self.handlers["linear"](
                self._compute, Site("linear", root, "blocks.0.attn2.to_k"), context
            )

        given = {"hidden_states": torch.zeros(1), "encoder_hidden_states": text, **arguments}
        return self.handlers["denoiser"](model, Site("denoiser", root), given)

    def plain(self, text):
        return self.layer(text * 2)

    def _compute(self, x):
        self.computed += 1
        return self.layer(x)

    @property
    def seen(self):
        return dict(self.technique.counters.seen)


@pytest.fixture
def model():
    torch.manual_seed(0)
    return ByHand()


def text(seed=0, tokens=5):
    return torch.randn(1, tokens, 4, generator=torch.Generator().manual_seed(seed))


def test_the_same_text_is_computed_once(model):
    one, other = text(1), text(2)
    for _ in range(3):
        assert torch.equal(model.call(one), model.plain(one))
        assert torch.equal(model.call(other), model.plain(other))
    assert model.computed == 2 and model.seen == {"misses": 2, "hits": 4}
    assert model.technique.evidence()["kept_bytes"] == 2 * 5 * 3 * 4
    assert model.technique.evidence()["saved_flops"] == 4 * 2 * 5 * 4 * 3


def test_equal_texts_that_are_two_tensors_are_two(model):
    model.call(text(1))
    model.call(text(1))
    assert model.seen == {"misses": 2}


def test_another_text_at_the_address_of_a_dead_one_is_not_taken_for_it(model):
    objects, count = set(), 40
    for seed in range(count):
        fresh = text(seed)
        objects.add(id(fresh))
        assert torch.equal(model.call(fresh), model.plain(fresh))
        del fresh
    assert model.seen == {"misses": count}
    assert len(objects) < count, "no identity was used twice, so that this has shown nothing"


def test_a_dropped_text_that_comes_again_at_its_address_is_computed(model):
    buffer = torch.zeros(1, 5, 4)
    for seed in range(3):
        view = buffer.view(1, 5, 4)  # another object on the same storage
        view.copy_(text(seed))
        assert torch.equal(model.call(view), model.plain(view))
    assert model.seen == {"misses": 3}


def test_a_write_into_the_text_is_seen(model):
    one = text(1)
    model.call(one)
    one.mul_(2)
    assert torch.equal(model.call(one), model.plain(one))
    assert torch.equal(model.call(one), model.plain(one))
    assert model.seen == {"misses": 2, "hits": 1}
    assert sum(1 for _ in model.technique.held_tensors()) == 2, "what was made of the former text is dropped"


def test_a_write_into_what_was_given_back_is_seen(model):
    one = text(1)
    model.call(one).zero_()
    assert torch.equal(model.call(one), model.plain(one))
    assert model.seen == {"misses": 2}


def test_roots_do_not_share(model):
    one = text(1)
    for root in ("transformer", "transformer_2"):
        model.call(one, root)
    assert model.seen == {"misses": 2}


def test_another_scale_of_a_lora_is_another_entry(model):
    one = text(1)
    for scale in (1.0, 0.5, 1.0):
        model.call(one, attention_kwargs={"scale": scale})
    assert model.seen == {"misses": 2, "hits": 1}


def test_a_context_of_another_size_is_computed(model):
    one = text(1)
    model.call(one)
    model.call(one, change=lambda context: context[:, :2])
    assert model.seen == {"misses": 2}


def test_four_texts_are_kept_and_the_least_recently_used_goes(model):
    texts = [text(seed) for seed in range(5)]
    for one in (*texts[:4], texts[0], texts[4]):  # the second is now the oldest
        model.call(one)
    assert model.seen == {"misses": 5, "hits": 1}
    model.call(texts[0])
    assert model.seen["hits"] == 2
    model.call(texts[1])
    assert model.seen["misses"] == 6


class Wrapped(torch.Tensor):
    pass


BYPASSED = {
    "of which it is not known": {"ip_adapter": torch.zeros(1)},
    "more than numbers": {"attention_kwargs": {"mask": torch.zeros(1)}},
    "not a plain tensor": {"encoder_hidden_states_image": torch.zeros(1, 2, 4).as_subclass(Wrapped)},
}


@pytest.mark.parametrize("word", BYPASSED)
def test_what_is_not_understood_is_computed_and_counted(model, word):
    one = text(1)
    for _ in range(2):
        assert torch.equal(model.call(one, **BYPASSED[word]), model.plain(one))
    assert model.seen == {"bypasses": 2} and not list(model.technique.held_tensors())
    ((_, reason),) = model.technique.counters.reasons
    assert word in reason


ONE, IMAGE = torch.zeros(1, 5, 4), torch.zeros(1, 2, 4)
CONTEXTS = {
    "a pair": ((ONE, IMAGE), (ONE, IMAGE)),
    "a pair without an image": ((ONE, None), (ONE,)),
    "a pair without a text": ((None, IMAGE), ()),
    "a pair of another kind": ((ONE, "image"), ()),
    "a list": ([ONE, IMAGE], ()),
    "nothing": ((), ()),
}


@pytest.mark.parametrize("what", CONTEXTS)
def test_text_and_image_in_one_argument(what):
    context, expected = CONTEXTS[what]
    control = [torch.zeros(1)]
    arguments = {"encoder_hidden_states": context, "block_controlnet_hidden_states": control}
    sources, settings, reason = read_call(arguments)
    assert len(sources) == len(expected) and all(map(lambda a, b: a is b, sources, expected))
    assert (settings, reason) == ((), "") if expected else "not a plain tensor" in reason


def test_an_argument_that_is_none_is_no_matter(model):
    one = text(1)
    for _ in range(2):
        model.call(one, ip_adapter=None, encoder_hidden_states_image=None, attention_kwargs=None)
    assert model.seen == {"misses": 1, "hits": 1}


def test_nothing_is_kept_with_gradients_or_of_inference_tensors(model):
    with torch.enable_grad():
        assert model.call(text(1)).requires_grad
    with torch.inference_mode():
        model.call(text(1))
    assert model.seen == {"bypasses": 2} and not list(model.technique.held_tensors())
    assert {reason for _, reason in model.technique.counters.reasons} == {GRADIENTS, INFERENCE}


def test_an_exception_leaves_no_text_behind_as_current(model):
    def fail(context):
        raise RuntimeError("lost")

    with pytest.raises(RuntimeError, match="lost"):
        model.call(text(1), change=fail)
    outside = model.handlers["linear"](model.layer, Site("linear", "transformer", "x"), text(1))
    assert torch.equal(outside, model.layer(text(1)))
    assert model.seen == {"bypasses": 1}


def test_the_end_of_a_run_drops_everything(model):
    model.call(text(1))
    assert list(model.technique.held_tensors())
    model.technique.end()
    assert not list(model.technique.held_tensors())


# --- sessions -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def host():
    return host_of("wf_plugin_fused_wan", "wf_plugin_wan")


def layers(pipe):
    """The text layers of one transformer, control blocks included."""
    names = ("attn2.to_k", "attn2.to_v", "attn2.add_k_proj", "attn2.add_v_proj")
    return sum(path.endswith(names) for path, layer in pipe.transformer.named_modules() if "blocks." in path)


def evidence(session):
    (found,) = session.report["effective"].values()
    return found["state"], found["evidence"]


@pytest.mark.parametrize("recipe", ["t2v", "two_experts", "ti2v", "i2v", "vace"])
def test_a_clip_is_the_plain_clip(host, recipe):
    pipe, arguments = models.RECIPES[recipe]()
    arguments = {**arguments, "output_type": "latent"}
    plain = pipe(**models.fresh(arguments)).frames
    with host.session(pipe, REQUEST, verify_contents=True) as session:
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, plain)
        state, found = evidence(session)
        calls = session.report["steps"]["calls"]
        assert state == "effective" and not session.report["fallbacks"]
        assert found["misses"] == layers(pipe) * len(calls) == layers(pipe) * found["texts"]
        assert found["hits"] == layers(pipe) * sum(count - 1 for count in calls.values())
        assert session.held_bytes() == 0 < session.report["memory"]["held_bytes_at_end"]
    assert layers(pipe) == {"t2v": 6, "two_experts": 6, "ti2v": 4, "i2v": 8, "vace": 8}[recipe]
    assert 0 < found["saved_share"] < 1


def test_every_layer_runs_once_per_branch(host):
    pipe, arguments = models.p1(), models.call(num_inference_steps=3)
    ran = Counter()
    with host.session(pipe, REQUEST) as session:
        block = session.pipe.transformer.blocks[1]
        for name in ("to_k", "to_q"):
            getattr(block.attn2, name).register_forward_hook(
                lambda layer, args, out, name=name: ran.update([name])
            )
        stock = nn.functional.linear
        shapes = Counter()

        def counted(x, weight, *rest):
            shapes[id(weight)] += 1
            return stock(x, weight, *rest)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(nn.functional, "linear", counted)
            session.pipe(**arguments)
        weights = {name: id(getattr(block.attn2, name).weight) for name in ("to_k", "to_v", "to_q")}
    assert {name: shapes[weight] for name, weight in weights.items()} == {"to_k": 2, "to_v": 2, "to_q": 6}
    assert ran == {"to_k": 6, "to_q": 6}, "hooks of the layers still see every call"


def test_an_expert_that_the_run_has_left_keeps_nothing(host):
    pipe, arguments = models.p2(), models.call(num_inference_steps=10)
    with host.session(pipe, REQUEST) as session:
        session.pipe(**arguments)
        _, found = evidence(session)
    assert found["texts"] == 4
    assert found["kept_bytes"] == 2 * layers(pipe) * models.embeds()["prompt_embeds"].shape[1] * 24 * 4


def test_a_text_that_changes_between_steps_is_computed_anew(host):
    pipe, arguments = models.p1(), models.call(num_inference_steps=4, guidance_scale=1.0)

    def louder(pipe, index, timestep, values):
        values["prompt_embeds"].mul_(1.5 if index == 1 else 1.0)
        return values

    more = {"callback_on_step_end": louder, "callback_on_step_end_tensor_inputs": ["prompt_embeds"]}
    plain = pipe(**{**models.fresh(arguments), **models.embeds()}, **more).frames
    with host.session(pipe, REQUEST) as session:
        ours = session.pipe(**{**models.fresh(arguments), **models.embeds()}, **more).frames
        _, found = evidence(session)
    assert torch.equal(ours, plain)
    assert found["misses"] == 4 * layers(pipe), (
        "each write makes the text another, even one that changes no value"
    )


def test_a_guidance_interval(host):
    """The second branch comes at some steps only."""
    base, timesteps = models.w(), (1000.0, 800.0, 600.0, 400.0, 200.0)
    texts = {"cond": models.w_inputs(seed=1), "uncond": models.w_inputs(seed=2)}

    def clip(model):
        for index, timestep in enumerate(timesteps):
            for branch in ("cond", "uncond") if 1 <= index < 4 else ("cond",):
                inputs = models.w_inputs(seed=index, timestep=timestep)
                inputs["encoder_hidden_states"] = texts[branch]["encoder_hidden_states"]
                with model.cache_context(branch):
                    yield model(**inputs)[0]

    plain = list(clip(base))
    with host.session(base, REQUEST) as session:
        with session.run(timesteps=timesteps):
            ours = list(clip(session.model))
        _, found = evidence(session)
    assert all(map(torch.equal, ours, plain))
    assert (found["misses"], found["hits"]) == (8 * 2, 8 * (4 + 2))


def test_a_run_that_fails_keeps_nothing(host):
    def fail(pipe, index, timestep, values):
        raise RuntimeError("cancelled")

    pipe, arguments = models.p1(), models.call(num_inference_steps=3)
    with host.session(pipe, REQUEST) as session:
        with pytest.raises(RuntimeError, match="cancelled"):
            session.pipe(**models.fresh(arguments), callback_on_step_end=fail)
        assert session.held_bytes() == 0
        assert torch.equal(
            session.pipe(**models.fresh(arguments)).frames, pipe(**models.fresh(arguments)).frames
        )


def test_every_run_computes_its_text_once(host):
    """Also when it is given the very tensors of the run before."""
    arguments = models.call(num_inference_steps=2)
    with host.session(models.p1(), REQUEST) as session:
        clips = [session.pipe(**models.fresh(arguments)).frames for _ in range(2)]
        _, found = evidence(session)
    assert torch.equal(*clips) and (found["misses"], found["hits"]) == (12, 12)


def test_one_step_has_nothing_to_give_back(host):
    with host.session(models.p1(), REQUEST) as session:
        session.pipe(**models.call(num_inference_steps=1))
        state, found = evidence(session)
    assert state == "inert" and found["misses"] == 12 and "hits" not in found


def test_beside_a_feature_cache(host):
    """A skipped step asks for no text; the others are as without."""
    both = host_of("wf_plugin_fused_wan", "wf_plugin_wan", "wf_plugin_cache_taylorseer")
    cache = {"feature_cache": {"algorithm": "taylorseer"}}
    pipe, arguments = models.p1(), models.call(num_inference_steps=8)
    clips = []
    for request in (cache, {**cache, **REQUEST}):
        with both.session(pipe, request) as session:
            clips.append(session.pipe(**models.fresh(arguments)).frames)
            effective = session.report["effective"]
    assert torch.equal(*clips)
    assert effective["taylorseer"]["evidence"]["skipped"] > 0
    assert effective["static-cross-kv"]["state"] == "effective"


def test_compiled_blocks_share_one_graph_and_are_counted(host):
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    base = models.w(num_layers=3)
    inputs = models.w_inputs()
    plain = base(**inputs)[0]
    with host.session(base, REQUEST) as session:
        for block in session.model.blocks:
            block.compile(backend="eager", fullgraph=True)
        with session.run(num_inference_steps=3):
            ours = [session.model(**inputs)[0] for _ in range(3)]
        state, found = evidence(session)
    assert all(torch.equal(out, plain) for out in ours)
    assert state == "effective" and (found["misses"], found["hits"]) == (6, 12)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1
