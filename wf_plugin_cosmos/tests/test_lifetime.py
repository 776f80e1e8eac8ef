"""Uninstalling cuts every cycle: without the garbage collector, a closed session's copy goes with its last name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

ROOT = ("guidance", "denoiser", "stack", "block", "modulation")
BLOCK = ("branch", "norm_modulate", "gated_residual", "feed_forward")
ATTENTION = ("attention", "rope", "qkv")
VAE = ("vae.decode", "vae.encode")
LEVELS = {
    "nothing": (),
    "root": ROOT,
    "block": BLOCK,
    "attention": ATTENTION,
    "linear": ("linear",),
    "vae": VAE,
    "all": (*ROOT, *BLOCK, *ATTENTION, "linear", *VAE, "placement"),
}
CLOSED = "belongs to a session that is closed"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def use(tiny: SimpleNamespace, kind: str, pipe: Any, opened: Any) -> None:
    with opened.run():
        pipe.transformer(**tiny.call(kind))
        pipe.vae.decode(torch.zeros(1, 16, 2, 4, 6))


def watch(opened: Any) -> list[weakref.ref[Any]]:
    """Every module of the copies, every processor, and what the session put into them."""
    watched: list[weakref.ref[Any]] = []
    for component in opened.components.values():
        for module in component.modules():
            parts = (module, getattr(module, "processor", None), module.__dict__.get("forward"))
            calls = module.__dict__.get("_wf")
            watched += [weakref.ref(part) for part in (*parts, calls) if part is not None]
    return watched


def alive(watched: list[weakref.ref[Any]]) -> list[str]:
    return [type(part).__name__ for ref in watched if (part := ref()) is not None]


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("kind", ["p1", "transfer"])
def test_the_copy_goes_without_the_garbage_collector(
    kind: str, level: str, tiny: SimpleNamespace, no_collector: None
) -> None:
    pipe, opened = tiny.open_pipe(tiny.pipe(kind), *LEVELS[level])
    use(tiny, kind, pipe, opened)
    watched = watch(opened)
    assert len(alive(watched)) > 100
    opened.family.uninstall(opened.components)
    opened.wiring.close()
    del pipe, opened
    assert alive(watched) == []


def test_without_uninstalling_the_copy_stays(tiny: SimpleNamespace, no_collector: None) -> None:
    """What the test above would not see if there were no cycles to cut."""
    pipe, opened = tiny.open_pipe(tiny.pipe("p1"), *LEVELS["all"])
    use(tiny, "p1", pipe, opened)
    watched = watch(opened)
    del pipe, opened
    assert len(alive(watched)) > 100


def test_what_somebody_kept_says_that_its_session_is_closed(tiny: SimpleNamespace) -> None:
    pipe, opened = tiny.open_pipe(tiny.pipe("p2"), *LEVELS["all"])
    for _ in range(2):
        opened.family.uninstall(opened.components)
    root, vae = pipe.transformer, pipe.vae
    with pytest.raises(RuntimeError, match=CLOSED):
        root(**tiny.call("p2"))
    with pytest.raises(RuntimeError, match=CLOSED):
        vae.decode(torch.randn(1, 16, 2, 4, 6))
    with pytest.raises(RuntimeError, match=CLOSED):
        vae.encode(torch.randn(1, 3, 5, 32, 32))
    with pytest.raises(RuntimeError, match=CLOSED):
        root.transformer_blocks[0].attn1.to_q(torch.randn(1, 2, tiny.width))


def test_blocks_of_the_users_own_are_let_be(tiny: SimpleNamespace) -> None:
    """Nothing inner is claimed on a foreign block, so there is nothing to take out of it either."""
    model = tiny.copy(tiny.model("p2"))
    model.transformer_blocks[1] = torch.nn.Identity()
    opened = tiny.open(model, "denoiser")
    opened.family.uninstall(opened.components)
    assert type(opened.components["transformer"].transformer_blocks[1]) is torch.nn.Identity


def test_the_base_works_on(tiny: SimpleNamespace) -> None:
    base, given = tiny.pipe("p1"), tiny.arguments("p1", output_type="pt")
    expected = tiny.output(base, given)
    pipe, opened = tiny.open_pipe(base, *LEVELS["all"])
    use(tiny, "p1", pipe, opened)
    opened.family.uninstall(opened.components)
    assert torch.equal(tiny.output(base, given), expected)
    assert not any("_wf" in module.__dict__ for module in base.transformer.modules())
