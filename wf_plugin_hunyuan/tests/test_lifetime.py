"""Uninstalling cuts every cycle: without the garbage collector, a closed session's copy goes with its last name."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch

LEVELS = {
    "nothing": (),
    "root": ("guidance", "denoiser", "stack", "block", "modulation"),
    "block": ("branch", "feed_forward", "norm_modulate", "gated_residual"),
    "attention": ("attention", "qkv", "rope"),
    "linear": ("linear",),
    "vae": ("vae.decode", "vae.encode"),
}
ALL = tuple(seam for seams in LEVELS.values() for seam in seams)
CLOSED = "belongs to a session that is closed"


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def use(pipe: Any, opened: Any, given: dict[str, Any]) -> None:
    with opened.run():
        pipe(**given, generator=torch.Generator().manual_seed(0))


def watch(opened: Any) -> list[weakref.ref[Any]]:
    """Every module of the copies, every processor, and what the session put into them."""
    watched: list[weakref.ref[Any]] = []
    for component in opened.components.values():
        for module in component.modules():
            parts = (
                module,
                getattr(module, "processor", None),
                *map(module.__dict__.get, ("_wf", "_wf_memory", "forward")),
            )
            watched += [weakref.ref(part) for part in parts if part is not None]
    return watched


def alive(watched: list[weakref.ref[Any]]) -> list[str]:
    return [type(part).__name__ for ref in watched if (part := ref()) is not None]


@pytest.mark.parametrize(
    ("kind", "level"),
    [("t2v", "nothing"), ("t2v", "root"), ("t2v", "block"), ("t2v", "all"), ("1.5", "all")],
)
def test_the_copy_goes_without_the_garbage_collector(
    kind: str, level: str, tiny: SimpleNamespace, no_collector: None
) -> None:
    decoded = {"output_type": "pt", "num_inference_steps": 1} if level in ("vae", "all") else {}
    pipe, opened = tiny.open_pipe(tiny.pipe(kind), *LEVELS.get(level, ALL))
    use(pipe, opened, tiny.arguments(kind, **decoded))
    watched = watch(opened)
    assert len(alive(watched)) > 100
    opened.family.uninstall(opened.components)
    opened.wiring.close()
    del pipe, opened
    assert alive(watched) == []


def test_without_uninstalling_the_copy_stays(tiny: SimpleNamespace, no_collector: None) -> None:
    """What the test above would not see if there were no cycles to cut."""
    pipe, opened = tiny.open_pipe(tiny.pipe("t2v"), *ALL)
    use(pipe, opened, tiny.arguments("t2v"))
    watched = watch(opened)
    del pipe, opened
    assert len(alive(watched)) > 100


def test_what_somebody_kept_says_that_its_session_is_closed(tiny: SimpleNamespace) -> None:
    pipe, opened = tiny.open_pipe(tiny.pipe("t2v"), *ALL)
    use(pipe, opened, tiny.arguments("t2v"))
    for _ in range(2):
        opened.family.uninstall(opened.components)
    root, vae = pipe.transformer, pipe.vae
    with pytest.raises(RuntimeError, match=CLOSED):
        root(**tiny.call("t2v"))
    with pytest.raises(RuntimeError, match=CLOSED), root.cache_context("cond"):
        pass
    with pytest.raises(RuntimeError, match=CLOSED):
        vae.decode(torch.randn(1, 4, 2, 4, 6))
    with pytest.raises(RuntimeError, match=CLOSED):
        root.transformer_blocks[0].attn.to_q(torch.randn(1, 2, 20))


def test_a_runs_tensors_go_with_the_run(tiny: SimpleNamespace) -> None:
    opened, call = tiny.open(tiny.model("1.5"), "stack"), tiny.call("1.5")
    with opened.run():
        opened.components["transformer"](**call)
        mask = weakref.ref(call.pop("encoder_attention_mask"))
        assert mask() is not None, "held, so that no other tensor can take its place in the run"
    assert mask() is None


def test_a_memory_does_not_grow_with_new_tensors() -> None:
    from wf_plugin_hunyuan.run_memory import LIMIT, RunMemory

    memory, kept = RunMemory(), []
    for _ in range(3 * LIMIT):
        tensor = torch.zeros(1)
        kept.append(weakref.ref(tensor))
        memory.once(torch.sum, tensor)
    del tensor
    assert sum(ref() is not None for ref in kept) == LIMIT


# --- VAE --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("kind", "slicing"), [("t2v", False), ("t2v", True), ("1.5", True)])
def test_the_vae_through_its_seams_is_bit_identical(kind: str, slicing: bool, tiny: SimpleNamespace) -> None:
    vae = tiny.vae(kind)
    opened = tiny.opened({"vae": tiny.copy(vae)}, ("vae.decode", "vae.encode"))
    copied = opened.components["vae"]
    vae.use_slicing = copied.use_slicing = slicing
    latents = torch.randn(2, 4, 2, 2, 2, generator=torch.Generator().manual_seed(1))
    video = vae.decode(latents).sample
    assert torch.equal(copied.decode(latents).sample, video)
    assert torch.equal(copied.decode(latents, return_dict=False)[0], video)
    posterior = copied.encode(video).latent_dist.parameters
    assert torch.equal(posterior, vae.encode(video).latent_dist.parameters)
    assert len(opened.seen.of("vae.decode")) == (4 if slicing else 2)


def test_long_clips_of_a_default_vae_are_decoded_in_temporal_tiles_behind_the_seam(
    tiny: SimpleNamespace,
) -> None:
    vae = tiny.vae()
    copied = tiny.opened({"vae": tiny.copy(vae)}, ("vae.decode",)).components["vae"]
    latents = torch.randn(1, 4, 6, 1, 1, generator=torch.Generator().manual_seed(1))
    assert torch.equal(copied.decode(latents).sample, vae.decode(latents).sample)
    assert copied.decode(latents).sample.shape[2] == 21
