"""The packages by stand-ins with the signatures of the real ones, which compute attention and keep their habits."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from wf_core.api import Ineligible
from wf_lib_attention.call import Call
from wf_lib_attention.machine import Machine
from wf_plugin_attention_sage.providers import PROVIDERS
from wf_plugin_attention_sage.sage import Sage1, Sage2
from wf_plugin_attention_sage.sage3 import Sage3

HOPPER, BLACKWELL = (9, 0), (12, 0)


def attention(q, k, v, scale):
    out = F.scaled_dot_product_attention(
        *(x.transpose(1, 2) for x in (q, k, v)), scale=scale, enable_gqa=True
    )
    return out.transpose(1, 2)


class Packages:
    """``calls`` holds what the last function was given; its name first."""

    def __init__(self, package):
        self.package, self.calls, self.spoil = package, [], False

    def first_line(self):
        """sageattention 1.0.6."""
        self.package("sageattention", sageattn=self.of_1)

    def second_line(self):
        """sageattention 2.2.0."""
        self.package("sageattention", sageattn=self.of_2, sageattn_qk_int8_pv_fp16_triton=self.triton)

    def third(self):
        self.package("sageattn3", sageattn3_blackwell=self.of_3)

    def of_1(self, q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, smooth_k=True, **kwargs):
        assert tensor_layout == "NHD" and not is_causal and not kwargs
        if smooth_k:
            k -= k.mean(dim=1, keepdim=True)
        return self.answer("1", q, k, v, sm_scale)

    def of_2(self, q, k, v, tensor_layout="HND", is_causal=False, sm_scale=None, return_lse=False, **kwargs):
        assert tensor_layout == "NHD" and not is_causal and not return_lse and not kwargs
        return self.answer("2", q, k, v, sm_scale)

    def triton(
        self, q, k, v, tensor_layout="HND", quantization_backend="triton", is_causal=False, sm_scale=None,
        smooth_k=True, return_lse=False, **kwargs,
    ):  # fmt: skip
        assert tensor_layout == "NHD" and quantization_backend == "triton" and smooth_k and not kwargs
        return self.answer("triton", q, k, v, sm_scale)

    def of_3(self, q, k, v, attn_mask=None, is_causal=False, per_block_mean=True, **kwargs):
        """HND; writes its keys; scales by its own head size; takes no groups."""
        assert attn_mask is None and not is_causal and per_block_mean and not kwargs
        assert q.shape[1] == k.shape[1], "grouped heads"
        assert q.shape[-1] in (64, 128)
        k -= k.mean(dim=-2, keepdim=True)
        q, k, v = (x.transpose(1, 2) for x in (q, k, v))
        return self.answer("3", q, k, v, q.shape[-1] ** -0.5).transpose(1, 2)

    def answer(self, name, q, k, v, scale):
        self.calls.append((name, q, k, v, scale))
        return torch.full_like(q, torch.nan) if self.spoil else attention(q, k, v, scale)


@pytest.fixture
def packages(package):
    return Packages(package)


SERVED = [
    (Sage1, "first_line", "1"),
    (Sage1, "second_line", "triton"),
    (Sage2, "second_line", "2"),
    (lambda: Sage3(min_tokens=1), "third", "3"),
]
IDS = ["sage1 of 1.x", "sage1 of 2.x", "sage2", "sage3"]


@pytest.mark.parametrize(("make", "line", "called"), SERVED, ids=IDS)
def test_layout_scale_and_result(make, line, called, packages, on, inputs, reference, relative_error):
    on(*BLACKWELL)
    getattr(packages, line)()
    q, k, v = inputs(lk=64, size=128)
    kept = k.clone()
    out = make().attend(q, k, v, None)
    assert relative_error(out, reference(q, k, v)) <= 2e-3
    assert [call[0] for call in packages.calls] == [called]
    assert packages.calls[0][4] == 128**-0.5
    assert torch.equal(k, kept), "the caller's keys are as they were"


@pytest.mark.parametrize(("make", "line", "called"), SERVED, ids=IDS)
def test_grouped_heads(make, line, called, packages, on, inputs, reference, relative_error):
    on(*BLACKWELL)
    getattr(packages, line)()
    q, k, v = inputs(lk=64, heads=8, key_heads=2)
    kept = k.clone()
    assert relative_error(make().attend(q, k, v, None), reference(q, k, v)) <= 2e-3
    assert packages.calls[0][2].shape[2] == 2, "no key head is repeated"
    assert torch.equal(k, kept)


@pytest.mark.parametrize(("make", "line", "called"), SERVED, ids=IDS)
def test_a_mask_is_refused_and_never_dropped(make, line, called, packages, on, inputs):
    on(*BLACKWELL)
    getattr(packages, line)()
    with pytest.raises(Ineligible, match="takes no mask"):
        make().attend(*inputs(), torch.ones(33, 17, dtype=torch.bool))
    assert packages.calls == []


@pytest.mark.parametrize(("make", "line", "called"), SERVED, ids=IDS)
def test_values_that_are_not_finite_refuse_such_calls_from_then_on(make, line, called, packages, on, inputs):
    on(*BLACKWELL)
    getattr(packages, line)()
    packages.spoil = True
    provider = make()
    for _ in range(2):
        with pytest.raises(Ineligible, match="gave non-finite values"):
            provider.attend(*inputs(lk=64), None)
        provider.end()
    assert len(packages.calls) == 1


def test_the_first_line_smooths_a_copy_to_the_same_bits(packages, on, inputs):
    """What the package would do to the caller's keys in place."""
    on(*HOPPER)
    packages.first_line()
    q, k, v = inputs(lk=64)
    ours = Sage1().attend(q, k, v, None)
    assert torch.equal(ours, packages.of_1(q, k.clone(), v, tensor_layout="NHD", sm_scale=64**-0.5))


@pytest.mark.parametrize(("keys", "absent"), [(77, "51"), (1001, "23"), (63, "1")])
def test_the_first_line_refuses_where_keys_that_are_not_there_would_weigh(keys, absent, packages, on, inputs):
    on(*HOPPER)
    packages.first_line()
    with pytest.raises(Ineligible, match=f"with {keys} keys, {absent} that are not there"):
        Sage1().attend(*inputs(lk=keys), None)


@pytest.mark.parametrize("keys", [64, 512, 27280, 32760])
def test_a_last_block_that_is_nearly_full_or_one_of_very_many_is_taken(keys):
    from wf_plugin_attention_sage.sage import refuse_absent_keys

    refuse_absent_keys(keys)


def test_sage2_does_not_take_the_first_line_for_itself(packages, on, inputs):
    on(*HOPPER)
    packages.first_line()
    with pytest.raises(Ineligible, match=r"of the 1\.x line"):
        Sage2().attend(*inputs(), None)


def test_a_function_without_scale_is_refused(package, on, inputs):
    """``**kwargs`` would swallow it."""
    on(*HOPPER)
    package("sageattention", sageattn=lambda q, k, v, tensor_layout="HND", return_lse=False, **kwargs: q)
    with pytest.raises(Ineligible, match="no argument 'sm_scale'"):
        Sage2().attend(*inputs(), None)


@pytest.mark.parametrize("size", [40, 64, 80, 96, 128])
def test_a_padded_head_keeps_its_scale(size, packages, on, inputs, reference, relative_error):
    on(*BLACKWELL)
    packages.third()
    q, k, v = inputs(size=size)
    provider = Sage3(min_tokens=1)
    out = provider.attend(q, k, v, None)
    assert out.shape == q.shape
    assert relative_error(out, reference(q, k, v)) <= 2e-3
    padded = any("padded" in step for step in provider.evidence()["around"])
    assert padded == (size not in (64, 128))


@pytest.mark.parametrize(("lq", "lk"), [(33, 128), (128, 17), (64, 64)])
def test_short_attention_is_refused_with_the_number(lq, lk, packages, on, inputs):
    on(*BLACKWELL)
    packages.third()
    with pytest.raises(
        Ineligible, match=f"sage3 is kept to 100 tokens and more, this call has {min(lq, lk)}"
    ):
        Sage3(min_tokens=100).attend(*inputs(lq=lq, lk=lk), None)
    Sage3(min_tokens=100).attend(*inputs(lq=100, lk=100), None)
    assert len(packages.calls) == 1


CALL = Call(
    *((1, 8192, 8, 128),) * 3, torch.bfloat16, torch.device("cuda", 0), strides=((8388608, 1024, 128, 1),) * 3
)


def of_size(size):
    return replace(CALL, query=(1, 8192, 8, size), key=(1, 8192, 8, size), value=(1, 8192, 8, size))


@pytest.mark.parametrize(
    ("name", "capability", "call", "says"),
    [
        ("sage1", (8, 0), CALL, ""),
        ("sage1", (7, 5), CALL, "8.0 or later"),
        ("sage1", (9, 0), of_size(80), "64, 96 and 128, this call has 80"),
        ("sage1", (9, 0), replace(CALL, dtype=torch.float32), "float32"),
        ("sage2", (8, 6), of_size(80), ""),
        ("sage2", (12, 1), CALL, ""),
        ("sage2", (8, 7), CALL, "8.0, 8.6, 8.9, 9.0, 12.0, 12.1, this device has 8.7"),
        ("sage2", (10, 0), CALL, "this device has 10.0"),
        ("sage2", (9, 0), of_size(256), "up to 128"),
        ("sage2", (9, 0), replace(CALL, grad=True), "no_grad"),
        ("sage3", (12, 0), CALL, ""),
        ("sage3", (10, 0), CALL, "12.0 or 12.1, this device has 10.0"),
        ("sage3", (12, 0), of_size(256), "up to 128"),
    ],
)
def test_eligibility(name, capability, call, says):
    reason = PROVIDERS[name].limits.why_not(call, Machine(capability))
    assert says in reason
    assert bool(says) == bool(reason)


@pytest.mark.parametrize("name", PROVIDERS)
def test_none_is_recorded_into_a_graph(name):
    reason = PROVIDERS[name].limits.why_not(replace(CALL, capturing=True), Machine((12, 0)))
    assert f"{name} may not be recorded into a CUDA graph" in reason


@pytest.mark.parametrize(("name", "least", "old"), [("sage1", "1.0.6", "1.0.5"), ("sage2", "2.1.1", "2.0.0")])
def test_an_old_package_is_refused(name, least, old):
    limits = PROVIDERS[name].limits
    assert f"{least} or later, this is {old}" in limits.why_not(CALL, Machine((9, 0)), old)
    assert limits.why_not(CALL, Machine((9, 0)), least) == ""


@pytest.mark.parametrize(
    "error", [ImportError("x"), OSError("undefined symbol"), AttributeError("x")], ids=repr
)
def test_a_package_that_does_not_import_is_refused_at_open(error, monkeypatch):
    import sys

    class Broken:
        @staticmethod
        def find_spec(name, path=None, target=None):
            if name in ("sageattention", "sageattn3"):
                raise error

    for name in ("sageattention", "sageattn3"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setattr(sys, "meta_path", [Broken, *sys.meta_path])
    for provider in (Sage1(), Sage2(), Sage3()):
        with pytest.raises(Ineligible, match=f"cannot be imported .{type(error).__name__}"):
            provider.prepare({})
