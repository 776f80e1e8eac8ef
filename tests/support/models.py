"""Tiny models of the real diffusers classes, random weights from a fixed seed, on the CPU.

Names follow the fault scenarios: W and W16 (transformers), V21 and V22 (VAEs), P1 and P2 (pipelines), HY (a stock
HunyuanVideo transformer), and one pipeline per Wan recipe.
"""

from __future__ import annotations

from typing import Any

import torch
from diffusers import (
    AutoencoderKLWan,
    FlowMatchEulerDiscreteScheduler,
    HunyuanVideo15Transformer3DModel,
    HunyuanVideoTransformer3DModel,
    LTXVideoTransformer3DModel,
    UniPCMultistepScheduler,
    WanImageToVideoPipeline,
    WanPipeline,
    WanTransformer3DModel,
    WanVACEPipeline,
    WanVACETransformer3DModel,
    WanVideoToVideoPipeline,
)
from PIL import Image

from wf_core.testing import seeded
from wf_plugin_wan.trial import TEXT_TOKENS, TRANSFORMER, VAE

W_CONFIG: dict[str, Any] = {**TRANSFORMER, "in_channels": 4, "out_channels": 4, "num_layers": 4}


def w(seed: int = 0, **changes: Any) -> WanTransformer3DModel:
    return seeded(WanTransformer3DModel, seed=seed, **{**W_CONFIG, **changes})


def w16(seed: int = 0, **changes: Any) -> WanTransformer3DModel:
    return w(seed, **{"in_channels": 16, "out_channels": 16, "num_layers": 3, **changes})


HY_CONFIG: dict[str, Any] = {
    "in_channels": 4,
    "out_channels": 4,
    "num_attention_heads": 2,
    "attention_head_dim": 10,
    "num_layers": 2,
    "num_single_layers": 2,
    "num_refiner_layers": 1,
    "patch_size": 1,
    "patch_size_t": 1,
    "text_embed_dim": 16,
    "pooled_projection_dim": 8,
    "rope_axes_dim": (2, 4, 4),
    "guidance_embeds": True,
}


def hy(seed: int = 0, **changes: Any) -> HunyuanVideoTransformer3DModel:
    return seeded(HunyuanVideoTransformer3DModel, seed=seed, **{**HY_CONFIG, **changes})


def hy15(**changes: Any) -> HunyuanVideo15Transformer3DModel:
    """HunyuanVideo-1.5: two streams in both of its blocks."""
    config: dict[str, Any] = {
        "in_channels": 9,
        "out_channels": 4,
        "num_attention_heads": 2,
        "attention_head_dim": 16,
        "num_layers": 2,
        "num_refiner_layers": 1,
        "mlp_ratio": 2.0,
        "text_embed_dim": 16,
        "text_embed_2_dim": 12,
        "image_embed_dim": 6,
        "rope_axes_dim": (2, 6, 8),
    }
    return seeded(HunyuanVideo15Transformer3DModel, **{**config, **changes})


def ltx(seed: int = 0) -> LTXVideoTransformer3DModel:
    """A video model of a family that no plugin provides."""
    return seeded(
        LTXVideoTransformer3DModel,
        seed=seed,
        in_channels=4,
        out_channels=4,
        num_attention_heads=2,
        attention_head_dim=8,
        cross_attention_dim=16,
        num_layers=1,
        caption_channels=16,
    )


def hy_inputs(seed: int = 1) -> dict[str, Any]:
    """6 text tokens of which 4 are valid; latents 1x4x3x4x4; guidance 6000."""
    g = torch.Generator().manual_seed(seed)
    mask = torch.tensor([[1, 1, 1, 1, 0, 0]])
    return {
        "hidden_states": torch.randn(1, 4, 3, 4, 4, generator=g),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 6, 16, generator=g),
        "encoder_attention_mask": mask,
        "pooled_projections": torch.randn(1, 8, generator=g),
        "guidance": torch.tensor([6000.0]),
    }


def v21(seed: int = 0) -> AutoencoderKLWan:
    return seeded(AutoencoderKLWan, seed=seed, **VAE)


def v22(seed: int = 0, z_dim: int = 16) -> AutoencoderKLWan:
    return seeded(
        AutoencoderKLWan,
        seed=seed,
        base_dim=8,
        decoder_base_dim=8,
        z_dim=z_dim,
        dim_mult=[1, 1, 1, 1],
        num_res_blocks=1,
        temperal_downsample=[False, True, True],
        is_residual=True,
        in_channels=12,
        out_channels=12,
        patch_size=2,
        scale_factor_spatial=16,
        scale_factor_temporal=4,
        latents_mean=[0.0] * z_dim,
        latents_std=[1.0] * z_dim,
    )


def euler(shift: float = 3.0) -> FlowMatchEulerDiscreteScheduler:
    return FlowMatchEulerDiscreteScheduler(shift=shift)


def unipc(shift: float = 3.0) -> UniPCMultistepScheduler:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction", use_flow_sigmas=True, num_train_timesteps=1000, flow_shift=shift
    )


def quiet(pipe: Any) -> Any:
    pipe.set_progress_bar_config(disable=True)
    return pipe


def p1(scheduler: Any = None, vae: Any = None, **changes: Any) -> WanPipeline:
    """One expert, no text encoder: embeddings are passed in."""
    return quiet(
        WanPipeline(
            tokenizer=None,
            text_encoder=None,
            transformer=w16(**changes),
            vae=vae or v21(),
            scheduler=scheduler or euler(),
        )
    )


def p2(scheduler: Any = None, high: bool = True, low: bool = True) -> WanPipeline:
    """Two experts, boundary 0.9; ``high`` or ``low`` False leaves that expert out."""
    return quiet(
        WanPipeline(
            tokenizer=None,
            text_encoder=None,
            transformer=w16() if high else None,
            transformer_2=w16(seed=5) if low else None,
            vae=v21(),
            scheduler=scheduler or euler(),
            boundary_ratio=0.9,
        )
    )


def embeds(seed: int = 7, tokens: int = TEXT_TOKENS, dim: int = 16) -> dict[str, torch.Tensor]:
    g = torch.Generator().manual_seed(seed)
    return {
        "prompt_embeds": torch.randn(1, tokens, dim, generator=g),
        "negative_prompt_embeds": torch.randn(1, tokens, dim, generator=g),
    }


def call(seed: int = 0, **changes: Any) -> dict[str, Any]:
    """Arguments of a P1 or P2 call: 32x32, 9 frames, 4 steps, guidance 3, latents out."""
    arguments = {
        **embeds(),
        "height": 32,
        "width": 32,
        "num_frames": 9,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
        "output_type": "latent",
        "generator": torch.Generator().manual_seed(seed),
    }
    return {**arguments, **changes}


def w_inputs(
    seed: int = 3, frames: int = 3, height: int = 8, width: int = 8, timestep: float = 500.0
) -> dict[str, Any]:
    """Keyword arguments of one W call: latents ``[1, 4, frames, height, width]`` and 7 text tokens."""
    g = torch.Generator().manual_seed(seed)
    return {
        "hidden_states": torch.randn(1, 4, frames, height, width, generator=g),
        "timestep": torch.tensor([timestep]),
        "encoder_hidden_states": torch.randn(1, TEXT_TOKENS, 16, generator=g),
        "return_dict": False,
    }


# --- one pipeline per recipe, with the arguments of a short call ---------------------------------------------------

I2V_TEXT = 512


def t2v(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    return to(p1(scheduler=unipc()), dtype), cast(call(output_type="np"), dtype)


def two_experts(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    return to(p2(scheduler=unipc()), dtype), cast(call(output_type="np", num_inference_steps=5), dtype)


def ti2v(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    """Per-token timesteps on the 2.2 VAE (48 latent channels, factor 16)."""
    pipe = quiet(
        WanPipeline(
            tokenizer=None,
            text_encoder=None,
            transformer=w(in_channels=48, out_channels=48, num_layers=2),
            vae=v22(z_dim=48),
            scheduler=unipc(5.0),
            expand_timesteps=True,
        )
    )
    return to(pipe, dtype), cast(call(height=64, width=64, output_type="np"), dtype)


def i2v(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    """Wan 2.1 image-to-video: 36 input channels, 257 image tokens, 512 text tokens."""
    transformer = w(
        in_channels=36, out_channels=16, image_dim=4, added_kv_proj_dim=24, num_layers=2, text_dim=32
    )
    pipe = quiet(
        WanImageToVideoPipeline(
            tokenizer=None,
            text_encoder=None,
            image_encoder=None,
            image_processor=None,
            transformer=transformer,
            vae=v21(),
            scheduler=unipc(),
        )
    )
    g = torch.Generator().manual_seed(11)
    image_tokens = torch.randn(1, 257, 4, generator=g)
    pipe.encode_image = lambda image, device=None: image_tokens
    arguments = call(
        **embeds(tokens=I2V_TEXT, dim=32),
        image=torch.rand(1, 3, 32, 32, generator=g),
        output_type="np",
        num_inference_steps=3,
    )
    return to(pipe, dtype), cast(arguments, dtype)


def v2v(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    pipe = quiet(
        WanVideoToVideoPipeline(
            tokenizer=None, text_encoder=None, transformer=w16(), vae=v21(), scheduler=unipc()
        )
    )
    g = torch.Generator().manual_seed(12)
    video = torch.rand(9, 3, 32, 32, generator=g)
    arguments = call(video=list(video), strength=0.8, output_type="np", num_inference_steps=5)
    del arguments["num_frames"]
    return to(pipe, dtype), cast(arguments, dtype)


def vace(dtype: torch.dtype = torch.float32) -> tuple[Any, dict[str, Any]]:
    transformer = seeded(
        WanVACETransformer3DModel,
        **{**W_CONFIG, "in_channels": 16, "out_channels": 16, "num_layers": 2, "vace_layers": [0, 1]},
    )
    pipe = quiet(
        WanVACEPipeline(
            tokenizer=None, text_encoder=None, transformer=transformer, vae=v21(), scheduler=unipc()
        )
    )
    arguments = call(video=pictures(9, seed=13), output_type="np", num_inference_steps=3)
    return to(pipe, dtype), cast(arguments, dtype)


def pictures(count: int, seed: int, size: int = 32) -> list[Image.Image]:
    g = torch.Generator().manual_seed(seed)
    noise = (torch.rand(count, size, size, 3, generator=g) * 255).to(torch.uint8).numpy()
    return [Image.fromarray(frame) for frame in noise]


RECIPES = {"t2v": t2v, "two_experts": two_experts, "ti2v": ti2v, "i2v": i2v, "v2v": v2v, "vace": vace}


def to(pipe: Any, dtype: torch.dtype) -> Any:
    """Cast as ``from_pretrained(dtype=...)`` does: what the model keeps in fp32 stays fp32, and the VAE too."""
    if dtype == torch.float32:
        return pipe
    for name in ("transformer", "transformer_2"):
        model = getattr(pipe, name, None)
        if model is None:
            continue
        keep = tuple(model._keep_in_fp32_modules or ())
        for key, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if not any(part in key.split(".") for part in keep):
                tensor.data = tensor.data.to(dtype)
    return pipe


def cast(arguments: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    return {
        key: value.to(dtype) if isinstance(value, torch.Tensor) and key.endswith("embeds") else value
        for key, value in arguments.items()
    }


def fresh(arguments: dict[str, Any]) -> dict[str, Any]:
    """The same arguments with a generator of the same seed, for a second call."""
    seed = arguments["generator"].initial_seed()
    return {**arguments, "generator": torch.Generator().manual_seed(seed)}
