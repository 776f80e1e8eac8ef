"""Casting on the copy: what ``from_pretrained(torch_dtype=...)`` gives, made once, and nothing of it on the base."""

from __future__ import annotations

import copy

import pytest
import torch
from diffusers import WanTransformer3DModel
from torch import nn

from wf_core import BadInput, BaseModified, Refused
from wf_core.api import seeded
from wf_core.testing import fingerprint
from wf_plugin_execution_numerics.casting import WeightDtype, cast, floating, put, to_cast

from .conftest import CONFIG, inputs

HALF = ["bfloat16", "float16"]


class EveryTime:
    """Variants without a store: built whenever they are asked for, and every question is kept."""

    def __init__(self):
        self.asked = []

    def get(self, key, sources, build):
        self.asked.append((key, tuple(sources)))
        return build()


class Tied(nn.Module):
    """One weight under two names, one that stays in float32, integers, and a table that is a buffer."""

    _keep_in_fp32_modules = ("norm",)

    def __init__(self):
        super().__init__()
        self.first = nn.Linear(4, 4)
        self.second = nn.Linear(4, 4, bias=False)
        self.second.weight = self.first.weight
        self.norm = nn.LayerNorm(4)
        self.normal = nn.Linear(4, 4, bias=False)
        self.register_buffer("table", torch.ones(3), persistent=False)
        self.count = nn.Parameter(torch.zeros(2, dtype=torch.int64), requires_grad=False)
        self.first.bias.requires_grad_(False)


def technique(dtype=torch.bfloat16):
    made = WeightDtype(dtype)
    made.variants = EveryTime()
    return made


def tensors(module):
    return {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}


def census(module):
    found = [str(p.dtype).removeprefix("torch.") for p in module.parameters() if p.is_floating_point()]
    return {name: found.count(name) for name in found}


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    path = tmp_path_factory.mktemp("checkpoint")
    model.save_pretrained(path)
    return path


@pytest.mark.parametrize("dtype", HALF)
def test_it_is_what_loading_in_the_dtype_gives(dtype, folder, model, host):
    loaded = WanTransformer3DModel.from_pretrained(folder, torch_dtype=getattr(torch, dtype)).eval()
    for (
        parameter
    ) in loaded.parameters():  # out of the file's mapping, whose alignment may choose other kernels
        parameter.data = parameter.data.clone()
    with host.session(model, {"torch_dtype": dtype}) as session:
        ours, theirs = tensors(session.model), tensors(loaded)
        assert ours.keys() == theirs.keys()
        for name, tensor in theirs.items():
            assert ours[name].dtype is tensor.dtype, name
            assert torch.equal(ours[name], tensor), name
            assert ours[name].stride() == tensor.stride(), name
        assert session.model.dtype is loaded.dtype is getattr(torch, dtype)
        call = inputs(loaded.dtype)
        with torch.no_grad(), session.run():
            out = session.model(**call)[0]
        assert session.report["effective"]["torch-dtype"]["evidence"]["dtypes"] == census(loaded)
    with torch.no_grad():
        assert torch.equal(out, loaded(**call)[0])


@pytest.mark.parametrize(("dtype", "bound"), [("bfloat16", 2e-2), ("float16", 5e-3)])
def test_results_differ_within_the_stated_tolerance(dtype, bound, run):
    reference, (out, report, _) = run({})[0].double(), run({"torch_dtype": dtype})
    assert 0 < float((out.double() - reference).norm() / reference.norm()) <= bound
    claim = report["effective"]["torch-dtype"]
    assert claim["state"] == "effective"
    assert "kept_in_fp32_rounded" not in claim["evidence"]


def test_the_base_is_untouched(host, model):
    before, mark = tensors(model), fingerprint(model, contents=True)
    with host.session(model, {"torch_dtype": "bf16"}, verify_contents=True) as session:
        ours = tensors(session.model)
        shared = {name for name, tensor in ours.items() if tensor is before[name]}
        assert shared == {name for name, tensor in ours.items() if tensor.dtype is torch.float32}, (
            "what is not cast is the base's own"
        )
        with torch.no_grad(), session.run():
            session.model(**inputs(torch.bfloat16))
    after = tensors(model)
    assert all(after[name] is tensor for name, tensor in before.items())
    assert mark.diff(fingerprint(model, contents=True), run_state=False) == []


def test_sessions_on_one_base_share_what_was_cast(host, model):
    with (
        host.session(model, {"torch_dtype": "bf16"}) as one,
        host.session(model, {"torch_dtype": "bf16"}) as two,
    ):
        ours, theirs = tensors(one.model), tensors(two.model)
        assert all(ours[name] is theirs[name] for name in ours)
        with host.session(model, {"torch_dtype": "fp16"}) as other:
            assert other.model.dtype is torch.float16
            assert one.model.dtype is torch.bfloat16


def test_a_plain_session_beside_it_is_the_base(host, model):
    with torch.no_grad():
        plain = model(**inputs())[0]
    with host.session(model, {"torch_dtype": "bf16"}), host.session(model, {}) as beside:
        with torch.no_grad(), beside.run():
            assert torch.equal(beside.model(**inputs())[0], plain)


def test_the_dtype_that_it_has_makes_no_copies(model, host):
    one = technique(torch.float32)
    one.prepare({"transformer": model})
    assert one.variants.asked == []
    with host.session(model, {"torch_dtype": "float32"}) as session:
        assert all(
            ours is base for ours, base in zip(session.model.parameters(), model.parameters(), strict=True)
        )
        with torch.no_grad(), session.run():
            session.model(**inputs())
        assert session.report["effective"]["torch-dtype"]["state"] == "effective"


def test_a_base_that_was_rounded_already_is_no_success(host):
    """No cast here can bring back what the user's own ``.to(bfloat16)`` took."""
    base = seeded(WanTransformer3DModel, **CONFIG)
    for parameter in base.parameters():
        parameter.data = parameter.data.to(torch.bfloat16)
    kept = sum(stays for _, _, stays in floating(base))
    with host.session(base, {"torch_dtype": "bf16"}) as session:
        with torch.no_grad(), session.run():
            session.model(**inputs(torch.bfloat16))
        claim = session.report["effective"]["torch-dtype"]
    assert claim["state"] == "partial"
    assert claim["evidence"]["kept_in_fp32_rounded"] == kept > 0


def test_every_expert_is_cast_and_each_is_a_variant():
    experts = {"transformer": Tied(), "transformer_2": Tied(), "vae": Tied(), "text_encoder": None}
    one = technique()
    before = {name: tuple(experts[name].parameters()) for name in ("transformer", "transformer_2")}
    one.prepare(experts)
    keys = [key for key, _ in one.variants.asked]
    assert keys == ["transformer:bfloat16", "transformer_2:bfloat16"]
    for (_, sources), owned in zip(one.variants.asked, before.values(), strict=True):
        assert all(source is parameter for source, parameter in zip(sources, owned, strict=True))
    assert experts["transformer_2"].first.weight.dtype is torch.bfloat16
    assert experts["vae"].first.weight.dtype is torch.float32


def test_a_weight_of_two_names_stays_one_and_the_rest_stays():
    root = Tied()
    table, norm, count = root.table, root.norm.weight, root.count
    technique().prepare({"transformer": root})
    assert root.first.weight is root.second.weight
    assert root.first.weight.dtype is root.normal.weight.dtype is torch.bfloat16
    assert root.table is table and root.norm.weight is norm and root.count is count
    assert root.first.weight.requires_grad and not root.first.bias.requires_grad
    assert root.first.weight.is_leaf


def test_only_whole_parts_of_a_name_stay():
    """``norm`` keeps ``norm.weight``, not ``normal.weight``: diffusers' rule for loading."""
    kept = {name for name, _, stays in floating(Tied()) if stays}
    assert kept == {"norm.weight", "norm.bias"}


def test_a_model_that_keeps_nothing_is_cast_whole():
    root = nn.Linear(2, 2)
    put(root, cast(to_cast(root, torch.float16), torch.float16))
    assert {parameter.dtype for parameter in root.parameters()} == {torch.float16}


class Packed(nn.Parameter):
    """As a library keeps quantised weights: a parameter of its own class."""


def test_packed_weights_are_refused():
    root = nn.Linear(2, 2)
    root._parameters["weight"] = Packed(torch.zeros(2, 2))
    with pytest.raises(BadInput, match="weight is a Packed"):
        technique().prepare({"transformer": root})


def test_a_family_that_does_not_say_what_stays_is_refused(host, model):
    with pytest.raises(Refused) as refused:
        host.resolve(model, {"torch_dtype": "bf16"}, facts={"model.kept_in_fp32": None})
    assert [v.code for v in refused.value.refusal.violations] == ["WF-E002"]


@pytest.mark.parametrize("inference", [False, True])
def test_gradients_reach_the_inputs_as_without_it(inference, host, model):
    """Also where the session that cast the weights was opened without any wish for gradients."""
    call = inputs(torch.bfloat16)
    call["hidden_states"].requires_grad_()
    with torch.inference_mode(inference):
        session = host.session(model, {"torch_dtype": "bf16"})
    with session:
        with session.run():
            session.model(**call)[0].float().sum().backward()
    assert call["hidden_states"].grad.abs().sum() > 0


def test_gradients_reach_the_users_own_parameters(host, model):
    base = copy.deepcopy(model).requires_grad_(True)
    with host.session(base, {"torch_dtype": "bf16"}) as session:
        with session.run():
            session.model(**inputs(torch.bfloat16))[0].float().sum().backward()
        cast = session.model.blocks[0].ffn.net[2].weight
        assert (cast.dtype, cast.grad) == (torch.bfloat16, None)
    grads = {name: parameter.grad for name, parameter in base.named_parameters()}
    assert grads["blocks.0.ffn.net.2.weight"].abs().sum() > 0
    assert {grad.dtype for grad in grads.values() if grad is not None} == {torch.float32}


def test_weights_that_were_changed_under_an_open_session_are_cast_anew(host, model):
    """The session also says at close that they were changed, and by now nobody knows by whom."""
    base, call = copy.deepcopy(model), inputs(torch.bfloat16)
    with torch.no_grad():
        session = host.session(base, {"torch_dtype": "bf16"})
        with session.run():
            before = session.model(**call)[0]
        base.proj_out.weight.mul_(2)
        base.proj_out.bias.mul_(2)
        with session.run():
            after = session.model(**call)[0]
        with pytest.raises(BaseModified, match=r"proj_out\.bias: version 0 -> 1"):
            session.close()
    assert torch.equal(after, 2 * before)
    assert session.report["effective"]["torch-dtype"]["evidence"]["casts_made_anew"] == 1
