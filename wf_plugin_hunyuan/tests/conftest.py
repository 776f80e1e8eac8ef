"""Tiny models of both generations that exercise every path, and a session in miniature: a copy, its wiring, one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLHunyuanVideo,
    AutoencoderKLHunyuanVideo15,
    ClassifierFreeGuidance,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15ImageToVideoPipeline,
    HunyuanVideo15Pipeline,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoImageToVideoPipeline,
    HunyuanVideoPipeline,
    HunyuanVideoTransformer3DModel,
)
from PIL import Image

from wf_core.api import Facts, Handler, RunView, Seams, Site, Technique, Wiring, seeded
from wf_core.testing import Run, copy_module, copy_pipeline
from wf_plugin_hunyuan import trial
from wf_plugin_hunyuan.family import HunyuanFamily

KINDS = ("t2v", "concat", "replace", "1.5", "1.5-image")
FORMS: dict[str, dict[str, Any]] = {
    "t2v": {},
    "concat": {"in_channels": 9, "guidance_embeds": False, "image_condition_type": "latent_concat"},
    "replace": {"image_condition_type": "token_replace"},
}
TRANSFORMER_15: dict[str, Any] = {
    "in_channels": 9,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 16,
    "num_layers": 3,
    "num_refiner_layers": 1,
    "mlp_ratio": 2.0,
    "text_embed_dim": 16,
    "text_embed_2_dim": 12,
    "image_embed_dim": 6,
    "rope_axes_dim": (2, 6, 8),
    "target_size": 64,
}
VAE_15: dict[str, Any] = {"latent_channels": 4, "block_out_channels": (16,) * 5, "layers_per_block": 1}
IMAGE_TOKENS, BYT5_TOKENS = 3, 4


def build_model(kind: str, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """A transformer with random weights in ``dtype``, as ``from_pretrained`` gives it: no part is kept in fp32.

    A copy of one that is made once, with the same weights.
    """
    return copy_module(_made(kind, dtype, tuple(config.items())))


@cache
def _made(kind: str, dtype: torch.dtype, changes: tuple[tuple[str, Any], ...]) -> Any:
    config = dict(changes)
    if kind.startswith("1.5"):
        model = seeded(HunyuanVideo15Transformer3DModel, **{**TRANSFORMER_15, **config})
    else:
        model = seeded(HunyuanVideoTransformer3DModel, **{**trial.TRANSFORMER, **FORMS[kind], **config})
    return model.to(dtype)


def build_call(
    kind: str, dtype: torch.dtype = torch.float32, valid: tuple[int, ...] = (5,)
) -> dict[str, Any]:
    """Keyword arguments of one transformer call on the grid (2, 2, 3), 12 tokens; ``valid`` main text tokens of 8."""
    g, batch = torch.Generator().manual_seed(11), len(valid)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(batch, *shape, generator=g).to(dtype)

    def mask(tokens: int, lengths: tuple[int, ...]) -> torch.Tensor:
        return (torch.arange(tokens) < torch.tensor(lengths).unsqueeze(1)).to(dtype)

    call: dict[str, Any] = {
        "timestep": torch.full((batch,), 500.0, dtype=dtype),
        "encoder_hidden_states": noise(8, 16),
        "encoder_attention_mask": mask(8, valid),
        "return_dict": False,
    }
    if kind.startswith("1.5"):
        image = (
            noise(IMAGE_TOKENS, 6) if kind == "1.5-image" else torch.zeros(batch, IMAGE_TOKENS, 6).to(dtype)
        )
        return call | {
            "hidden_states": noise(9, 2, 2, 3),
            "encoder_hidden_states_2": noise(BYT5_TOKENS, 12),
            "encoder_attention_mask_2": mask(BYT5_TOKENS, (2,) * batch),
            "image_embeds": image,
        }
    channels = FORMS[kind].get("in_channels", 4)
    guidance = None if kind == "concat" else torch.full((batch,), 6000.0, dtype=dtype)
    return call | {
        "hidden_states": noise(channels, 2, 4, 6),
        "pooled_projections": noise(8),
        "guidance": guidance,
    }


def build_vae(kind: str = "t2v") -> Any:
    """A VAE of the kind's generation: a copy of one that is made once."""
    return copy_module(_made_vae(kind.startswith("1.5")))


@cache
def _made_vae(new: bool) -> Any:
    if new:
        return seeded(AutoencoderKLHunyuanVideo15, **VAE_15)
    return seeded(AutoencoderKLHunyuanVideo, **trial.VAE)


class ImagePipeline15(HunyuanVideo15ImageToVideoPipeline):
    """Image-to-video without an image encoder: made-up image tokens."""

    def encode_image(self, image: Any, batch_size: int, device: Any, dtype: Any) -> torch.Tensor:
        noise = torch.randn(1, IMAGE_TOKENS, 6, generator=torch.Generator().manual_seed(1))
        return noise.repeat(batch_size, 1, 1).to(device, dtype)


def build_pipe(kind: str, dtype: torch.dtype = torch.float32, **parts: Any) -> Any:
    """A pipeline without text encoders: embeddings are passed in. ``parts`` replace components."""
    none = dict.fromkeys(("text_encoder", "tokenizer", "text_encoder_2", "tokenizer_2"))
    pipeline: Any = {
        "t2v": HunyuanVideoPipeline,
        "1.5": HunyuanVideo15Pipeline,
        "1.5-image": ImagePipeline15,
    }.get(kind, HunyuanVideoImageToVideoPipeline)
    given: dict[str, Any] = {
        "transformer": parts.pop("transformer", None) or build_model(kind, dtype),
        "vae": build_vae(kind),
        "scheduler": FlowMatchEulerDiscreteScheduler(shift=7.0),
    }
    if kind.startswith("1.5"):
        given["guider"] = ClassifierFreeGuidance(guidance_scale=3.0)
    if kind == "1.5-image":
        none |= {"image_encoder": None, "feature_extractor": None}
    if kind in ("concat", "replace"):
        none["image_processor"] = None
    pipe = pipeline(**none, **given | parts)
    pipe.vision_num_semantic_tokens = IMAGE_TOKENS
    pipe.set_progress_bar_config(disable=True)
    return pipe


def picture(width: int = 48, height: int = 32) -> Image.Image:
    noise = torch.rand(height, width, 3, generator=torch.Generator().manual_seed(5))
    return Image.fromarray((noise * 255).to(torch.uint8).numpy())


def build_arguments(kind: str, **more: Any) -> dict[str, Any]:
    """Arguments of a short call with two branches, latents out; both texts are padded, differently."""
    call: dict[str, Any] = {"num_frames": 5, "num_inference_steps": 3, "output_type": "latent"}
    for prefix, seed, valid in (("", 7, 5), ("negative_", 8, 3)):
        embeds = trial.embeds(seed, valid, prefix)
        if kind.startswith("1.5"):
            g = torch.Generator().manual_seed(seed)
            call[f"{prefix}prompt_embeds"] = embeds[f"{prefix}prompt_embeds"]
            call[f"{prefix}prompt_embeds_mask"] = embeds[f"{prefix}prompt_attention_mask"]
            call[f"{prefix}prompt_embeds_2"] = torch.randn(1, BYT5_TOKENS, 12, generator=g)
            call[f"{prefix}prompt_embeds_mask_2"] = torch.tensor([[1, 1, 0, 0]])
        else:
            call |= embeds
    if not kind.startswith("1.5"):
        call["true_cfg_scale"] = 3.0
    if kind in ("concat", "replace", "1.5-image"):
        call["image"] = picture()
    if kind != "1.5-image":
        call |= {"height": 32, "width": 48}
    return call | more


class Seen:
    """Pass-through handlers that note every call: the site and the shapes of the tensors handed over."""

    def __init__(self, seams: Seams, names: tuple[str, ...]) -> None:
        self.calls: list[tuple[Site, tuple[Any, ...]]] = []
        for name in names:
            seams.claim(name, f"watch-{name}", self._handler)

    def _handler(self, inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        self.calls.append((site, tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args)))
        return inner(*args)

    def of(self, seam: str) -> list[tuple[Site, tuple[Any, ...]]]:
        return [call for call in self.calls if call[0].seam == seam]


def new_run(timesteps: tuple[float, ...] = (), branches: int = 1) -> Run:
    view = RunView(
        num_inference_steps=len(timesteps),
        timesteps=timesteps,
        experts=(),
        branches=branches,
        facts=Facts(),
        modulation=lambda expert, steps: {},
        now=lambda: None,
    )
    return Run(view)


class Opened:
    """Copies of some components with the family installed; ``seen`` holds what the claimed seams were given.

    ``techniques`` claim by their own handlers, ``claims`` are bare handlers.
    """

    def __init__(
        self,
        components: Mapping[str, Any],
        seams: tuple[str, ...] = (),
        claims: Mapping[str, Handler] | None = None,
        techniques: Mapping[str, Technique] | None = None,
    ) -> None:
        self.components = dict(components)
        self.wiring = Wiring(Seams(), techniques)
        for name, technique in (techniques or {}).items():
            for seam, handler in technique.handlers().items():
                self.wiring.seams.claim(seam, name, handler, (), technique.wants)
        for seam, handler in (claims or {}).items():
            self.wiring.seams.claim(seam, f"claim-{seam}", handler)
        self.seen = Seen(self.wiring.seams, seams)
        self.family = HunyuanFamily()
        self.family.install(self.components, self.wiring)

    @contextmanager
    def run(self, timesteps: tuple[float, ...] = (), branches: int = 1) -> Iterator[Run]:
        self.wiring.run = new_run(timesteps, branches)
        try:
            yield self.wiring.run
        finally:
            self.wiring.run = None
            self.family.release(self.components)

    def once(self, call: Mapping[str, Any]) -> torch.Tensor:
        """The sample of one transformer call, in a run of its own."""
        with self.run():
            out: torch.Tensor = self.components["transformer"](**call)[0]
        return out


def open_model(model: Any, *seams: str, **more: Any) -> Opened:
    return Opened({"transformer": copy_module(model)}, seams, **more)


def open_pipe(pipe: Any, *seams: str, **more: Any) -> tuple[Any, Opened]:
    """A copy of the pipeline with the family installed on the components that a session owns."""
    owned = HunyuanFamily().owned(pipe)
    copied = copy_pipeline(pipe, owned)
    return copied, Opened({name: getattr(copied, name) for name in owned}, seams, **more)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The builders above, by short names: tests are imported by path and cannot import this file."""
    torch.set_num_threads(1)
    return SimpleNamespace(
        model=build_model,
        call=build_call,
        vae=build_vae,
        pipe=build_pipe,
        arguments=build_arguments,
        picture=picture,
        open=open_model,
        open_pipe=open_pipe,
        opened=Opened,
        copy=copy_module,
    )
