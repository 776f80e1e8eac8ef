"""Open attention: padding by the stock mask, by cut text without a mask, and never by a mask of all pairs on 1.5."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers.models.transformers import transformer_hunyuan_video15
from torch.utils._python_dispatch import TorchDispatchMode

from wf_core.api import AttentionProvider, Ineligible, Site
from wf_core.testing import Run
from wf_plugin_hunyuan import open_attention, open_root, text

KINDS = ("t2v", "concat", "replace", "1.5", "1.5-image")
DTYPES = (torch.float32, torch.bfloat16)
TOKENS = 12
PADDED = {"t2v": 8, "concat": 8, "replace": 8, "1.5": 15, "1.5-image": 15}
VALID = {"t2v": 5, "concat": 5, "replace": 5, "1.5": 7, "1.5-image": 10}


class Provider(AttentionProvider):
    """torch's attention in float32. ``masks=False`` takes no mask; ``only`` wants one block."""

    def __init__(self, masks: bool = True, only: int | None = None) -> None:
        self.seen: list[tuple[tuple[int, ...], Any]] = []
        self.masks = masks
        self.only = only

    def wants(self, site: Site) -> bool:
        return self.only in (None, site.index)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        if mask is not None and not self.masks:
            raise Ineligible("takes no mask")
        self.seen.append((tuple(key.shape), None if mask is None else tuple(mask.shape)))
        q, k, v = (x.transpose(1, 2) for x in (query, key, value))
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2)

    def counted(self, *given: Any) -> torch.Tensor:
        return self.attend(*given)


class StockMask(Provider):
    """Promises the stock's bits, so it wants the stock's mask."""

    stock_mask = True


def opened_with(tiny: SimpleNamespace, model: Any, provider: Provider, *seams: str) -> Any:
    return tiny.open(model, *seams, techniques={"mine": provider})


def close_to_stock(out: torch.Tensor, stock: torch.Tensor) -> None:
    """1e-6 of the largest value in fp32, one unit in the last place of it in bf16."""
    worst = float((out.float() - stock.float()).abs().max())
    largest = float(stock.abs().max())
    assert worst <= largest * (1e-6 if stock.dtype == torch.float32 else 2**-7), worst / largest


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", KINDS)
def test_a_provider_gets_cut_text_and_no_mask(kind: str, dtype: torch.dtype, tiny: SimpleNamespace) -> None:
    model, call, provider = tiny.model(kind, dtype), tiny.call(kind, dtype), Provider(masks=False)
    stock = model(**call)[0]
    out = opened_with(tiny, model, provider, "stack", "block").once(call)
    assert {(keys[1], mask) for keys, mask in provider.seen} == {(TOKENS + VALID[kind], None)}
    close_to_stock(out, stock)
    padding = {**call, "encoder_attention_mask": torch.ones_like(call["encoder_attention_mask"])}
    assert not torch.allclose(model(**padding)[0], stock, rtol=0, atol=1e-3), "padding must matter here"


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["t2v", "replace", "1.5", "1.5-image"])
def test_samples_of_different_lengths_share_a_mask_of_keys(
    kind: str, dtype: torch.dtype, tiny: SimpleNamespace
) -> None:
    model, call, provider = tiny.model(kind, dtype), tiny.call(kind, dtype, (5, 7, 2)), Provider()
    out = opened_with(tiny, model, provider).once(call)
    keys = TOKENS + VALID[kind] + 2
    assert set(provider.seen) == {((3, keys, 2, out_heads(kind)), (3, 1, 1, keys))}
    close_to_stock(out, model(**call)[0])
    with pytest.raises(Ineligible, match="takes no mask"):
        opened_with(tiny, model, Provider(masks=False)).once(call)


def out_heads(kind: str) -> int:
    return 16 if kind.startswith("1.5") else 10


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_provider_that_promises_the_stock_bits_gets_the_stock_mask(
    dtype: torch.dtype, tiny: SimpleNamespace
) -> None:
    model, call, provider = tiny.model("t2v", dtype), tiny.call("t2v", dtype), StockMask()
    assert torch.equal(opened_with(tiny, model, provider).once(call), model(**call)[0])
    assert {mask for _, mask in provider.seen} == {(1, 1, 1, TOKENS + PADDED["t2v"])}


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_a_claim_on_one_block_leaves_the_others_right(kind: str, tiny: SimpleNamespace) -> None:
    model, call, provider = tiny.model(kind), tiny.call(kind), Provider(only=1)
    close_to_stock(opened_with(tiny, model, provider).once(call), model(**call)[0])
    assert len(provider.seen) == 1


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_text_without_any_valid_token(kind: str, tiny: SimpleNamespace) -> None:
    model, call, provider = tiny.model(kind), tiny.call(kind, valid=(1,)), Provider()
    call["encoder_attention_mask_2" if kind == "1.5" else "encoder_attention_mask"][:] = 0
    if kind == "1.5":
        close_to_stock(opened_with(tiny, model, provider).once(call), model(**call)[0])
        assert provider.seen[0] == ((1, TOKENS + 1, 2, 16), None)
    assert text.cut_to((0,)) == 1
    mask = text.mask_if_needed((0,), 2, 1, torch.device("cpu"))
    assert mask is not None
    assert mask.flatten().tolist() == [True, True, False]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kind", ["1.5", "1.5-image"])
def test_open_projections_and_norms_of_1_5_are_right(
    kind: str, dtype: torch.dtype, tiny: SimpleNamespace
) -> None:
    model, call = tiny.model(kind, dtype), tiny.call(kind, dtype, (5, 8))
    opened = tiny.open(model, "qkv", "rope")
    close_to_stock(opened.once(call), model(**call)[0])
    assert [shapes[1] for _, shapes in opened.seen.of("qkv")] == [(2, TOKENS, 32)] * 3


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_what_is_attended_to_on_1_5_is_the_stocks_to_the_bit(
    dtype: torch.dtype, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Query, key and value of the first block; only the padded text tokens are not there."""
    given: dict[Any, list[Any]] = {}
    for module in (transformer_hunyuan_video15, open_attention):
        own = module.dispatch_attention_fn

        def note(*three: torch.Tensor, own: Any = own, of: Any = module, **rest: Any) -> Any:
            given.setdefault(of, []).append(three)
            return own(*three, **rest)

        monkeypatch.setattr(module, "dispatch_attention_fn", note)
    model, call = tiny.model("1.5-image", dtype), tiny.call("1.5-image", dtype)
    model(**call)
    tiny.open(model, "rope").once(call)
    stock, ours = given[transformer_hunyuan_video15][0], given[open_attention][0]
    kept = TOKENS + VALID["1.5-image"]
    assert [tensor.shape[1] for tensor in (*stock, *ours)] == [TOKENS + PADDED["1.5-image"]] * 3 + [kept] * 3
    assert all(torch.equal(a[:, :kept], b) for a, b in zip(stock, ours, strict=True))


@pytest.mark.parametrize("norm", [None, "layer_norm"])
def test_a_model_with_other_norms_of_query_and_key(norm: str | None, tiny: SimpleNamespace) -> None:
    """Where there are none, handlers of ``rope`` are given norms all the same, which do nothing."""
    model, call = tiny.model("t2v", qk_norm=norm), tiny.call("t2v", valid=(5, 8))
    norms: list[Any] = []

    def watch(inner: Any, site: Site, query: torch.Tensor, key: torch.Tensor, *rest: Any) -> Any:
        norms.extend(rest[0])
        return inner(query, key, *rest)

    out = tiny.open(model, claims={"rope": watch}).once(call)
    assert torch.equal(out, model(**call)[0])
    assert {callable(found) for found in norms} == {True}


class Pairs(TorchDispatchMode):
    """Shapes of the tensors that an operator gave, views included, in which a number of ``tokens`` stands twice."""

    def __init__(self, *tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.found: set[tuple[int, ...]] = set()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        for value in out if isinstance(out, tuple | list) else (out,):
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else ()
            if sum(size in self.tokens for size in shape) > 1:
                self.found.add(shape)
        return out


class Shallow(Provider):
    """Gives the values back: what is measured is what the adapter allocates, not a kernel."""

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        return value


@pytest.mark.parametrize("valid", [(5,), (5, 7)], ids=["one", "two-lengths"])
def test_nothing_of_all_pairs_of_tokens_is_allocated_on_1_5(
    valid: tuple[int, ...], tiny: SimpleNamespace
) -> None:
    model, call = tiny.model("1.5"), tiny.call("1.5", valid=valid)
    call["hidden_states"] = torch.randn(len(valid), 9, 2, 5, 10)
    full, cut = 100 + PADDED["1.5"], 100 + VALID["1.5"] + max(valid) - 5
    opened = opened_with(tiny, model, Shallow())
    with Pairs(full, cut) as ours:
        opened.once(call)
    with Pairs(full, cut) as stock:
        model(**call)
    assert ours.found == set()
    assert (len(valid), 1, full, full) in stock.found


@pytest.mark.parametrize("kind", ["t2v", "1.5"])
def test_lengths_are_read_back_once_per_run_and_prompt(
    kind: str, tiny: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = []
    name = "layout_of" if kind == "1.5" else "valid_lengths"
    own = getattr(text, name)

    def ask(*given: torch.Tensor) -> Any:
        asked.append(given)
        return own(*given)

    monkeypatch.setattr(open_root, name, ask)
    opened = opened_with(tiny, tiny.model(kind), Provider())
    cond, uncond = tiny.call(kind), tiny.call(kind, valid=(3,))
    outs: list[torch.Tensor] = []

    def step(run: Run) -> None:
        outs.extend(opened.components["transformer"](**call)[0] for call in (cond, uncond))

    with opened.run() as run:
        step(run)
        step(run)
    assert len(asked) == 2
    assert torch.equal(outs[0], outs[2]) and torch.equal(outs[1], outs[3])
    cond["encoder_attention_mask"][:, 3:] = (
        0  # written to: the next run must look again, and so must this one
    )
    with opened.run() as run:
        step(run)
        cond["encoder_attention_mask"][:, 2:] = 0
        step(run)
    assert len(asked) == 5
    assert not torch.equal(outs[4], outs[6])


def test_the_processors_backend_is_kept_and_obeyed(tiny: SimpleNamespace) -> None:
    base = tiny.copy(tiny.model("t2v"))
    base.single_transformer_blocks[0].attn.processor._attention_backend = "_native_math"
    opened = tiny.open(base, "attention")
    root = opened.components["transformer"]
    assert root.single_transformer_blocks[0].attn.processor._attention_backend == "_native_math"
    assert torch.equal(opened.once(tiny.call("t2v")), base(**tiny.call("t2v"))[0])
    root.transformer_blocks[1].attn.processor._attention_backend = "no-such-backend"
    with pytest.raises(ValueError, match="no-such-backend"):
        opened.once(tiny.call("t2v"))
