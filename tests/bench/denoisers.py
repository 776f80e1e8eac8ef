"""Wan denoisers of published shape with random weights, and random inputs for one forward of each."""

from __future__ import annotations

from typing import Any

import attrs
import torch
from diffusers import WanTransformer3DModel


@attrs.frozen
class Denoiser:
    """``latents`` is ``[B, C, T', H', W']`` of the clip; with ``per_token`` every token has a timestep, those of the
    first latent frame 0, as TI2V has with an image.
    """

    title: str
    config: dict[str, Any]
    latents: tuple[int, int, int, int, int]
    per_token: bool = False

    @property
    def tokens(self) -> int:
        _, _, frames, height, width = self.latents
        return frames * (height // 2) * (width // 2)


DENOISERS = {
    "wan_1_3b_480p": Denoiser(
        "Wan2.1-T2V-1.3B, 832x480x81",
        {"num_attention_heads": 12, "ffn_dim": 8960, "num_layers": 30},
        (1, 16, 21, 60, 104),
    ),
    "wan_ti2v_5b_704p": Denoiser(
        "Wan2.2-TI2V-5B, 1280x704x121",
        {
            "num_attention_heads": 24,
            "ffn_dim": 14336,
            "num_layers": 30,
            "in_channels": 48,
            "out_channels": 48,
        },
        (1, 48, 31, 44, 80),
        per_token=True,
    ),
    "wan_14b_480p": Denoiser(
        "Wan2.1-T2V-14B, 832x480x81",
        {"num_attention_heads": 40, "ffn_dim": 13824, "num_layers": 40},
        (1, 16, 21, 60, 104),
    ),
}


def build(denoiser: Denoiser) -> WanTransformer3DModel:
    """On CUDA in bfloat16, with in float32 what ``from_pretrained(dtype=torch.bfloat16)`` keeps there. Norm weights and
    the output layer, which start at one and zero, are drawn at random too, so that nothing is left out by a product
    with zero.
    """
    torch.manual_seed(0)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    try:
        with torch.device("cuda"):
            model = WanTransformer3DModel(
                attention_head_dim=128, freq_dim=256, text_dim=4096, **denoiser.config
            )
    finally:
        torch.set_default_dtype(before)
    keep = set(model._keep_in_fp32_modules)
    for name, parameter in model.named_parameters():
        if "norm" in name or name.startswith("proj_out"):
            parameter.data.normal_(float(parameter.ndim == 1 and name.endswith("weight")), 0.1)
        if keep & set(name.split(".")):
            parameter.data = parameter.data.float()
    return model.eval().requires_grad_(False)


def call(denoiser: Denoiser, latents: tuple[int, ...] | None = None) -> dict[str, Any]:
    """Random arguments of one forward, of other latents if given."""
    shape = latents or denoiser.latents
    g = torch.Generator("cuda").manual_seed(1)
    timestep = torch.full((shape[0],), 500.0, device="cuda")
    if denoiser.per_token:
        frame = (shape[3] // 2) * (shape[4] // 2)
        timestep = timestep[:, None].repeat(1, frame * shape[2])
        timestep[:, :frame] = 0
    return {
        "hidden_states": torch.randn(shape, generator=g, device="cuda", dtype=torch.bfloat16),
        "timestep": timestep,
        "encoder_hidden_states": torch.randn(1, 512, 4096, generator=g, device="cuda", dtype=torch.bfloat16),
        "return_dict": False,
    }
