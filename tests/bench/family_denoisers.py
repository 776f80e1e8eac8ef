"""HunyuanVideo and Cosmos denoisers of published shape with random weights, and random inputs for one forward of each.

``TINY`` has the same names with a few small blocks, for a CPU: what it measures means nothing, but that all of it runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import attrs
import torch
from diffusers import (
    CosmosTransformer3DModel,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoTransformer3DModel,
)
from diffusers.models.transformers import transformer_cosmos

Shape = tuple[int, int, int, int, int]
"""``[B, C, T', H', W']`` of latents, without the channels of a condition."""
DTYPE = torch.bfloat16


@attrs.frozen
class FamilyDenoiser:
    """``latents`` are those of the published clip, ``smaller`` of clips to fall back to where memory does not suffice,
    by what to call them, and ``short`` those of the clip that errors are measured on. Of ``text`` tokens the first
    ``valid`` count; the others are padding, which a mask leaves out, or which is zero.
    """

    title: str
    model: Callable[..., Any]
    config: dict[str, Any]
    inputs: Callable[[FamilyDenoiser, Shape, torch.Generator], dict[str, Any]]
    latents: Shape
    short: Shape
    patch: int
    text: int
    valid: int
    smaller: Mapping[str, Shape] = attrs.field(factory=dict)

    @property
    def depth(self) -> dict[str, int]:
        """The numbers of blocks of the stack, by their names in the config."""
        return {key: n for key, n in self.config.items() if key in ("num_layers", "num_single_layers")}

    @property
    def blocks(self) -> int:
        return sum(self.depth.values())

    def tokens(self, latents: Shape) -> int:
        """Image tokens of a clip."""
        _, _, frames, height, width = latents
        return frames * (height // self.patch) * (width // self.patch)

    def shortened(self, layers: int) -> FamilyDenoiser:
        """With at most so many blocks of each kind."""
        fewer = {key: min(n, layers) for key, n in self.depth.items()}
        return attrs.evolve(self, config={**self.config, **fewer})


def build_family(denoiser: FamilyDenoiser, device: str = "cuda") -> Any:
    """In bfloat16, made on the device. Matrices keep the size of what they multiply and norm weights are around one, so
    that gates and scales are as large as what they act on, and an error in a block reaches the sample.
    """
    if not hasattr(transformer_cosmos, "transforms"):
        transformer_cosmos.transforms = Resizing  # of torchvision; the stock forward fails without it
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(DTYPE)
    try:
        with torch.device(device):
            model = denoiser.model(**denoiser.config)
    finally:
        torch.set_default_dtype(before)
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1:
            parameter.data.normal_(0, parameter[0].numel() ** -0.5)
        elif "norm" in name:
            parameter.data.normal_(float(name.endswith("weight")), 0.1)
    return model.eval().requires_grad_(False)


def call_family(denoiser: FamilyDenoiser, latents: Shape, device: str = "cuda") -> dict[str, Any]:
    """Random arguments of one forward on a clip, in the dtypes that the pipeline gives them."""
    generator = torch.Generator(device).manual_seed(1)
    return {**denoiser.inputs(denoiser, latents, generator), "return_dict": False}


class _Nearest:
    """torchvision's part in the Cosmos forward, where it is not installed."""

    @staticmethod
    def resize(mask: torch.Tensor, size: list[int], interpolation: Any) -> torch.Tensor:
        return torch.nn.functional.interpolate(mask, size=size, mode="nearest")


Resizing = SimpleNamespace(functional=_Nearest, InterpolationMode=SimpleNamespace(NEAREST="nearest"))


def _noise(generator: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(shape, generator=generator, device=generator.device, dtype=DTYPE)


def _mask(generator: torch.Generator, tokens: int, valid: int) -> torch.Tensor:
    """``[1, tokens]``, one for the valid ones."""
    return (torch.arange(tokens, device=generator.device) < valid).to(DTYPE).unsqueeze(0)


def _hunyuan(denoiser: FamilyDenoiser, latents: Shape, g: torch.Generator) -> dict[str, Any]:
    config = denoiser.config
    return {
        "hidden_states": _noise(g, *latents),
        "timestep": torch.full((1,), 500.0, device=g.device),
        "encoder_hidden_states": _noise(g, 1, denoiser.text, config["text_embed_dim"]),
        "encoder_attention_mask": _mask(g, denoiser.text, denoiser.valid),
        "pooled_projections": _noise(g, 1, config["pooled_projection_dim"]),
        "guidance": torch.full((1,), 6000.0, device=g.device, dtype=DTYPE),
    }


GLYPHS, IMAGES = 256, 729
"""Tokens of HunyuanVideo-1.5's second text and of its image: all padding for a prompt without quoted text or image."""


def _hunyuan15(denoiser: FamilyDenoiser, latents: Shape, g: torch.Generator) -> dict[str, Any]:
    config, main = denoiser.config, denoiser.text - GLYPHS - IMAGES
    noise = _noise(g, *latents)
    condition = torch.zeros_like(noise[:, :1]).expand(-1, config["in_channels"] - latents[1], -1, -1, -1)
    return {
        "hidden_states": torch.cat([noise, condition], dim=1),
        "timestep": torch.full((1,), 500.0, device=g.device, dtype=DTYPE),
        "encoder_hidden_states": _noise(g, 1, main, config["text_embed_dim"]),
        "encoder_attention_mask": _mask(g, main, denoiser.valid),
        "encoder_hidden_states_2": torch.zeros_like(_noise(g, 1, GLYPHS, config["text_embed_2_dim"])),
        "encoder_attention_mask_2": _mask(g, GLYPHS, 0),
        "image_embeds": torch.zeros_like(_noise(g, 1, IMAGES, config["image_embed_dim"])),
    }


def _cosmos(denoiser: FamilyDenoiser, latents: Shape, g: torch.Generator) -> dict[str, Any]:
    """Video to world with one frame given: it has a time and a mask of its own."""
    _, _, frames, height, width = latents
    text = _noise(g, 1, denoiser.text, denoiser.config["text_embed_dim"])
    text[:, denoiser.valid :] = 0
    timestep = torch.full((1, 1, frames, 1, 1), 0.5, device=g.device, dtype=DTYPE)
    timestep[:, :, 0] = 0.0001
    condition = torch.zeros(1, 1, frames, height, width, device=g.device, dtype=DTYPE)
    condition[:, :, 0] = 1
    return {
        "hidden_states": _noise(g, *latents),
        "timestep": timestep,
        "encoder_hidden_states": text,
        "condition_mask": condition,
        "padding_mask": torch.zeros(1, 1, 8 * height, 8 * width, device=g.device, dtype=DTYPE),
        "fps": 16,
    }


FAMILY_DENOISERS = {  # the quickest first, that with the largest masks last
    "cosmos_predict2_2b_704p": FamilyDenoiser(
        "Cosmos-Predict2-2B Video2World, 1280x704x93",
        CosmosTransformer3DModel,
        {
            "in_channels": 17,
            "num_attention_heads": 16,
            "num_layers": 28,
            "text_embed_dim": 1024,
            "extra_pos_embed_type": None,
        },
        _cosmos,
        latents=(1, 16, 24, 88, 160),
        short=(1, 16, 3, 44, 80),
        patch=2,
        text=512,
        valid=120,
        smaller={"Cosmos-Predict2-2B Video2World, 832x480x93": (1, 16, 24, 60, 104)},
    ),
    "hunyuanvideo_720p": FamilyDenoiser(
        "HunyuanVideo, 1280x720x129",
        HunyuanVideoTransformer3DModel,
        {"num_layers": 20, "num_single_layers": 40, "text_embed_dim": 4096, "pooled_projection_dim": 768},
        _hunyuan,
        latents=(1, 16, 33, 90, 160),
        short=(1, 16, 3, 44, 80),
        patch=2,
        text=256,
        valid=100,
        smaller={"HunyuanVideo, 960x544x129": (1, 16, 33, 68, 120)},
    ),
    "hunyuanvideo15_480p": FamilyDenoiser(
        "HunyuanVideo-1.5 T2V, 848x480x121",
        HunyuanVideo15Transformer3DModel,
        {
            "in_channels": 65,
            "num_layers": 54,
            "text_embed_dim": 3584,
            "text_embed_2_dim": 1472,
            "image_embed_dim": 1152,
            "task_type": "t2v",
        },
        _hunyuan15,
        latents=(1, 32, 31, 30, 53),
        short=(1, 32, 2, 30, 53),
        patch=1,
        text=1000 + GLYPHS + IMAGES,
        valid=120,
        smaller={"HunyuanVideo-1.5 T2V, 848x480x61": (1, 32, 16, 30, 53)},
    ),
}

HUNYUAN15_720P: Shape = (1, 32, 31, 45, 80)
"""Of 1280x720x121: 111,600 tokens, and with the text's 113,585, for which a mask of all pairs has 12.0 GiB."""

_SMALL = {"num_attention_heads": 2, "attention_head_dim": 16, "mlp_ratio": 2.0, "num_layers": 3}
_SMALL_HUNYUAN = {**_SMALL, "num_refiner_layers": 1, "rope_axes_dim": (4, 6, 6), "text_embed_dim": 16}
TINY = {
    "hunyuanvideo_720p": attrs.evolve(
        FAMILY_DENOISERS["hunyuanvideo_720p"],
        title="tiny HunyuanVideo",
        config={
            **_SMALL_HUNYUAN,
            "num_single_layers": 3,
            "pooled_projection_dim": 8,
            "in_channels": 4,
            "out_channels": 4,
        },
        latents=(1, 4, 3, 8, 12),
        short=(1, 4, 2, 8, 12),
        text=8,
        valid=5,
        smaller={"tiny HunyuanVideo, shorter": (1, 4, 2, 8, 8)},
    ),
    "hunyuanvideo15_480p": attrs.evolve(
        FAMILY_DENOISERS["hunyuanvideo15_480p"],
        title="tiny HunyuanVideo-1.5",
        config={
            **_SMALL_HUNYUAN,
            "in_channels": 9,
            "out_channels": 4,
            "text_embed_2_dim": 12,
            "image_embed_dim": 6,
            "task_type": "t2v",
        },
        latents=(1, 4, 3, 6, 8),
        short=(1, 4, 2, 6, 8),
        text=8 + GLYPHS + IMAGES,
        valid=5,
        smaller={},
    ),
    "cosmos_predict2_2b_704p": attrs.evolve(
        FAMILY_DENOISERS["cosmos_predict2_2b_704p"],
        title="tiny Cosmos",
        config={
            **_SMALL,
            "in_channels": 5,
            "out_channels": 4,
            "text_embed_dim": 16,
            "adaln_lora_dim": 4,
            "max_size": (8, 16, 16),
            "extra_pos_embed_type": None,
        },
        latents=(1, 4, 3, 8, 12),
        short=(1, 4, 2, 8, 12),
        text=8,
        valid=5,
        smaller={},
    ),
}
