"""What the attention seam adds to one call: alone, and inside the model beside diffusers' own processor."""

from __future__ import annotations

import functools
import timeit
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import torch
from diffusers import WanTransformer3DModel
from diffusers.models.attention_dispatch import dispatch_attention_fn
from table import Row, show, side_by_side
from torch.nn import functional as F

from wf_core import Host

LOOP = 500
REPEAT = 80
BLOCKS = 30


def microseconds(*calls: Callable[[], object]) -> list[float]:
    """One call of each, from short loops in turns."""
    loops = [functools.partial(timeit.timeit, call, number=LOOP) for call in calls]
    return [seconds / LOOP * 1e6 for seconds in side_by_side(loops, REPEAT, min)]


def model() -> WanTransformer3DModel:
    return WanTransformer3DModel(
        num_layers=BLOCKS, num_attention_heads=1, attention_head_dim=32, ffn_dim=32, text_dim=32, freq_dim=32
    ).eval()


def inputs() -> dict[str, Any]:
    return {
        "hidden_states": torch.randn(1, 16, 1, 4, 4),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 4, 32),
        "return_dict": False,
    }


def bare(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """``[B, L, H, D]`` in and out, as the seam has it."""
    out = F.scaled_dot_product_attention(query.transpose(1, 2), key.transpose(1, 2), value.transpose(1, 2))
    return out.transpose(1, 2)


def seam_alone() -> list[Row]:
    """A provider that does the bare call, behind the seam that a session builds, without a model around it."""
    from wf_core.api import AttentionProvider, FeatureCounters, Seams, Site
    from wf_core.kinds.counters import Counters

    class Bare(AttentionProvider):
        def attend(
            self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
        ) -> torch.Tensor:
            return bare(query, key, value)

    provider = Bare()
    provider.counters = FeatureCounters("bare")
    provider.counters.open(Counters())
    seams = Seams()
    seams.claim("attention", "bare", provider.handlers()["attention"])
    seam = seams.wrap(
        Site("attention", "transformer", "blocks.0.attn1", 0, "self"), lambda q, k, v, m: bare(q, k, v)
    )
    q, k, v = (torch.randn(1, 4, 1, 32) for _ in range(3))
    direct, through, dispatch = microseconds(
        lambda: bare(q, k, v), lambda: seam(q, k, v, None), lambda: dispatch_attention_fn(q, k, v)
    )
    return [
        Row("seam with a provider, added to the bare call", through - direct, "us", 5),
        Row("peer: diffusers' dispatch, added", dispatch - direct, "us"),
        Row("peer: the bare call itself", direct, "us"),
    ]


def inside_the_model() -> list[Row]:
    """Whole forwards in turns; the difference to stock, shared out over the attention calls."""
    base, call = model(), inputs()
    host = Host.discover()
    with ExitStack() as stack:
        plain = stack.enter_context(host.session(base, {}))
        provided = stack.enter_context(host.session(base, {"attention_backend": "sdpa"}))
        for session in (plain, provided):
            stack.enter_context(session.run(num_inference_steps=1))
        stock_s, plain_s, provided_s = side_by_side(
            [lambda: base(**call), lambda: plain.model(**call), lambda: provided.model(**call)], REPEAT, min
        )
    attentions = 2 * BLOCKS
    return [
        Row("plain session, added per attention call", (plain_s - stock_s) / attentions * 1e6, "us", 5),
        Row(
            "session with a provider, added per attention call",
            (provided_s - stock_s) / attentions * 1e6,
            "us",
            5,
        ),
        Row("peer: diffusers' stock processors, whole forward per call", stock_s / attentions * 1e6, "us"),
    ]


@torch.no_grad()
def main() -> None:
    torch.set_num_threads(1)
    note = (
        f"a model of {BLOCKS} blocks in which arithmetic costs nearly nothing, so that what is left is Python"
    )
    show("Attention seam on the CPU, one call", [*seam_alone(), *inside_the_model()], note)


if __name__ == "__main__":
    main()
