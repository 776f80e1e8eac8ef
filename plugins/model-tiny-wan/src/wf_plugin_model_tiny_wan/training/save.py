"""Write the pipeline as a diffusers directory in bf16."""

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, WanPipeline, WanTransformer3DModel
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from wf_plugin_model_tiny_wan.training.architecture import make_scheduler, make_vae

#: Small tensors that diffusers computes in fp32 (``_keep_in_fp32_modules``) are stored in fp32.
KEEP_FP32 = ("time_embedder", "scale_shift_table", "norm1", "norm2", "norm3")


def round_weights(module: nn.Module, keep: tuple[str, ...] = ()) -> nn.Module:
    """Turn the parameters of ``module`` into bf16 in place, except those whose name contains one of ``keep``."""
    for name, parameter in module.named_parameters():
        if not any(part in name for part in keep):
            parameter.data = parameter.data.to(torch.bfloat16)
    return module


def with_statistics(vae: AutoencoderKLWan, mean: torch.Tensor, std: torch.Tensor) -> AutoencoderKLWan:
    """Return a copy of ``vae`` on the CPU whose configuration holds the latent statistics ``[16]``."""
    copy = make_vae()
    copy.load_state_dict(vae.state_dict())
    copy.register_to_config(
        latents_mean=[round(x, 5) for x in mean.tolist()], latents_std=[round(x, 5) for x in std.tolist()]
    )
    return copy


def save_pipeline(
    out: Path,
    transformer: WanTransformer3DModel,
    vae: AutoencoderKLWan,
    text_encoder: UMT5EncoderModel,
    tokenizer: PreTrainedTokenizerFast,
) -> None:
    """Write ``model_index.json`` and the five parts to ``out``; the given modules become bf16 and must be spare."""
    pipeline = WanPipeline(
        transformer=round_weights(transformer, KEEP_FP32),
        vae=round_weights(vae),
        text_encoder=round_weights(text_encoder),
        tokenizer=tokenizer,
        scheduler=make_scheduler(),
    )
    pipeline.save_pretrained(out, safe_serialization=True)
