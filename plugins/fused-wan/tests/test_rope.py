"""``fused-rope`` on HunyuanVideo and Cosmos: what their tables and norms mean, what is left to the stock code."""

from __future__ import annotations

from pathlib import Path

import pytest
import stock_rope
import stock_wan
import torch
from diffusers.models.normalization import RMSNorm
from fused_by_hand import ready
from stock_rope import FAMILIES

import wf_plugin_fused_wan
from wf_core.api import Facts, Ineligible
from wf_core.testing import Manifest
from wf_plugin_fused_wan import dispatch, gate, operators
from wf_plugin_fused_wan.rope import CONVENTIONS, FusedRope

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
HEADS, HEAD, IMAGE, TEXT = 3, 12, 7, 4


@pytest.fixture(autouse=True)
def _seeded():
    torch.manual_seed(0)
    with torch.no_grad():
        yield


@pytest.fixture
def opened(monkeypatch):
    """As if Triton worked here: the reference stands in for the kernel."""
    monkeypatch.setattr(gate, "why_not", lambda device: "")

    def technique(family, **options):
        ours = ready(FusedRope(family, **options))
        kernel = ours.rotations.kernel
        ours.rotations = dispatch.Dispatch(
            dispatch.Kernel(
                kernel.name, kernel.seam, kernel.reference, lambda *_: kernel.reference, kernel.ineligible
            )
        )
        return ours

    return technique


def joint(dtype=torch.float32, batch=2):
    """Query and key of image and text tokens, ``[B, L + S, H * D]``, as one wide projection gives them."""
    return torch.randn(batch, IMAGE + TEXT, 2 * HEADS * HEAD).to(dtype).chunk(2, dim=-1)


def never(*args):
    raise AssertionError("the stock code was called")


@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_the_torch_form_is_bit_for_bit_the_familys_own(opened, family, dtype, affine):
    ours, (query, key) = opened(family), joint(dtype)
    norms, tables = (
        stock_rope.norms(HEAD, dtype, affine=affine),
        stock_rope.tables(family, IMAGE, HEAD),
    )
    for part, at in ((slice(0, IMAGE), tables), (slice(IMAGE, None), None)):
        args = (query[:, part], key[:, part], norms, HEADS, at)
        assert not args[0].is_contiguous()
        found, stock = ours.rope(never, None, *args), stock_rope.norm_and_rotate(family, *args)
        assert all(torch.equal(*pair) and pair[0].dtype == dtype for pair in zip(found, stock, strict=True))
    key = key[:, :TEXT]  # a cross-attention
    found = ours.rope(never, None, query, key, norms, HEADS, None)
    stock = stock_rope.norm_and_rotate(family, query, key, norms, HEADS, None)
    assert all(torch.equal(*pair) for pair in zip(found, stock, strict=True))
    assert ours.counters.seen == {"calls": 3, "rope_calls": 3}


@pytest.mark.parametrize("precision", ["fp32", "fp64"])
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("family", FAMILIES)
def test_no_further_from_float64_than_stock(opened, family, dtype, precision):
    query, key = (x[:, :IMAGE] for x in joint(dtype))
    args = (query, key, stock_rope.norms(HEAD, dtype), HEADS, stock_rope.tables(family, IMAGE, HEAD))
    exact, stock = stock_rope.exactly(family, *args), stock_rope.norm_and_rotate(family, *args)
    found = opened(family, precision=precision).rope(never, None, *args)
    most = {torch.float32: 2e-7, torch.bfloat16: 5e-3, torch.float16: 1e-3}[dtype]
    for mine, theirs, right in zip(found, stock, exact, strict=True):
        assert stock_rope.error(theirs, right) < most, "the exact form is of another model"
        assert stock_rope.error(mine, right) <= 1.1 * stock_rope.error(theirs, right)


def test_tables_have_either_layout_and_a_family_never_reads_anothers_pairs(opened):
    query, key = (x[:, :IMAGE] for x in joint())
    for family, other in (FAMILIES, FAMILIES[::-1]):
        ours, norms, tables = (
            opened(family),
            stock_rope.norms(HEAD, torch.float32),
            stock_rope.tables(family, IMAGE, HEAD),
        )
        flat = ours.rope(never, None, query, key, norms, HEADS, tables)
        wide = ours.rope(never, None, query, key, norms, HEADS, [table[None, :, None] for table in tables])
        assert all(torch.equal(*pair) for pair in zip(flat, wide, strict=True))
        mistaken = opened(other).rope(never, None, query, key, norms, HEADS, tables)
        assert stock_rope.error(mistaken[0], flat[0].double()) > 0.1


def test_a_table_for_other_tokens_is_refused(opened):
    query, key = joint()
    tables = stock_rope.tables("cosmos", IMAGE, HEAD)
    with pytest.raises(Ineligible, match=r"a rope table is \[7, 12\], not \[1, 11, 1, 12\] or \[11, 12\]"):
        opened("cosmos").rope(never, None, query, key, stock_rope.norms(HEAD, torch.float32), HEADS, tables)


def test_the_familys_name_comes_from_the_facts_and_an_unknown_one_is_refused():
    for family in ("wan", *FAMILIES):
        facts = Facts.of({"model.family": family}, "test")
        made = wf_plugin_fused_wan.wf_fusion("fused-rope", {"precision": "fp64"}, facts)
        *_, form = made.arguments(None, None, None, None, (1e-6, 1e-5), 3, None)
        assert (form.pairing == "halves", form.per_head, form.rounds, form.double, form.eps) == (
            family == "cosmos",
            family != "wan",
            family != "wan",
            True,
            (1e-6, 1e-5),
        )
    for facts in (Facts(), Facts.of({"model.family": "ltx"}, "test")):
        with pytest.raises(ValueError, match="wan, hunyuan, cosmos are known, not those of"):
            wf_plugin_fused_wan.wf_fusion("fused-rope", {}, facts)


def test_every_family_of_the_manifest_has_a_convention():
    manifest = Manifest.load(Path(wf_plugin_fused_wan.__file__).with_name("wf-plugin.toml"))
    assert set(manifest.feature("fused-rope").families) == set(CONVENTIONS)


def test_one_form_for_equal_numbers(opened):
    ours, (query, key) = opened("hunyuan"), joint()
    forms = [ours.arguments(query, key, None, None, (eps, 1e-6), 3, None)[-1] for eps in (1e-6, 1e-6, 1e-5)]
    assert forms[0] is forms[1] is not forms[2]


def test_norms_of_another_kind_are_left_to_the_stock_code(opened):
    query, key = joint()
    biased = RMSNorm(HEAD, eps=1e-6, bias=True)
    of_torch = torch.nn.RMSNorm(HEAD, eps=1e-6)
    plain = RMSNorm(HEAD, eps=1e-6)
    for family, norm in (("cosmos", biased), ("cosmos", of_torch), ("hunyuan", None), ("wan", plain)):
        ours, told = opened(family), []
        ours.rope(lambda *args, told=told: told.append(args), None, query, key, (plain, norm), HEADS, None)
        assert told == [(query, key, (plain, norm), HEADS, None)]
        assert not ours.counters.seen


def test_wan_norms_all_heads_at_once(opened):
    query, key = joint()
    norms = (torch.nn.RMSNorm(HEAD), torch.nn.RMSNorm(HEAD))
    with pytest.raises(Ineligible, match="the norm is over 36 channels"):
        opened("wan").rope(stock_wan.norm_and_rotate, None, query, key, norms, HEADS, None)


def test_hooks_on_a_norm_are_not_left_out(opened):
    query, key = joint()
    norms = stock_rope.norms(HEAD, torch.float32)
    norms[1].register_forward_hook(never)
    with pytest.raises(Ineligible, match="carries hooks"):
        opened("hunyuan").rope(never, None, query, key, norms, HEADS, None)


@pytest.mark.parametrize(
    ("dtype", "weight"), [(torch.bfloat16, torch.float32), (torch.float32, torch.bfloat16)]
)
def test_a_norm_that_changes_the_dtype_is_refused(opened, dtype, weight):
    query, key = joint(dtype)
    norms = stock_rope.norms(HEAD, weight)
    assert norms[0](query.unflatten(2, (HEADS, HEAD))).dtype == weight != dtype
    with pytest.raises(Ineligible, match="the norm would give another dtype"):
        opened("cosmos").rope(never, None, query, key, norms, HEADS, None)


@pytest.mark.parametrize("family", FAMILIES)
def test_compiled_code_calls_the_operator_or_leaves_another_dtype_to_the_stock_code(
    monkeypatch, opened, family
):
    ours, (query, key) = opened(family), joint(torch.bfloat16)
    monkeypatch.setattr(operators, "serving", lambda feature: ours)
    tables = stock_rope.tables(family, IMAGE, HEAD)

    def stock(*args):
        return stock_rope.norm_and_rotate(family, *args)

    def attention(query, key, norms):
        image = ours.rope(stock, None, query[:, :IMAGE], key[:, :IMAGE], norms, HEADS, tables)
        text = ours.rope(stock, None, query[:, IMAGE:], key[:, IMAGE:], norms, HEADS, None)
        return [torch.cat(pair, dim=1) for pair in zip(image, text, strict=True)]

    compiled = torch.compile(attention, backend="aot_eager", fullgraph=True)
    norms = stock_rope.norms(HEAD, torch.bfloat16)
    for found, eager in zip(compiled(query, key, norms), attention(query, key, norms), strict=True):
        assert torch.equal(found, eager)
    assert ours.counters.seen == {"calls": 4, "rope_calls": 4}
    wide = stock_rope.norms(HEAD, torch.float32)
    assert compiled(query, key, wide)[0].dtype == torch.float32
    assert ours.counters.seen["calls"] == 4
    torch.library.opcheck(
        operators.norm_rope,
        (query[:, :IMAGE], key[:, :IMAGE], *(norm.weight for norm in norms), 1e-6, 1e-6, HEADS, *tables),
        test_utils=("test_schema", "test_faketensor"),
    )
