"""The parts of the pipeline: configurations as data, and functions that make each part from nothing."""

from pathlib import Path

import torch
from diffusers import AutoencoderKLWan, UniPCMultistepScheduler, WanTransformer3DModel
from safetensors.torch import load_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5Config, UMT5EncoderModel

from wf_plugin_model_tiny_wan.clips import VOCABULARY

TRANSFORMER = {
    "patch_size": (1, 2, 2),
    "num_attention_heads": 3,
    "attention_head_dim": 64,
    "in_channels": 16,
    "out_channels": 16,
    "text_dim": 64,
    "freq_dim": 128,
    "ffn_dim": 768,
    "num_layers": 10,
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "rope_max_seq_len": 64,
}
VAE = {"base_dim": 16, "z_dim": 16, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 1}
TEXT_ENCODER = {
    "vocab_size": 64,
    "d_model": 64,
    "d_kv": 16,
    "d_ff": 128,
    "num_layers": 2,
    "num_heads": 4,
    "pad_token_id": 0,
    "eos_token_id": 1,
}
SCHEDULER = {"prediction_type": "flow_prediction", "use_flow_sigmas": True, "flow_shift": 3.0}
#: Tokens the stock pipeline pads a prompt to, with zeros and without a mask.
CONTEXT_LENGTH = 512


def make_transformer() -> WanTransformer3DModel:
    """Return the denoiser, fp32, random weights."""
    return WanTransformer3DModel(**TRANSFORMER)


def make_vae() -> AutoencoderKLWan:
    """Return the autoencoder, fp32, random weights; its latent statistics are set when it is trained."""
    return AutoencoderKLWan(**VAE)


def make_text_encoder() -> UMT5EncoderModel:
    """Return the text encoder, fp32, random weights."""
    return UMT5EncoderModel(UMT5Config(**TEXT_ENCODER))


def make_scheduler() -> UniPCMultistepScheduler:
    """Return the sampler the checkpoint ships with."""
    return UniPCMultistepScheduler(**SCHEDULER)


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return the word-level tokenizer: lower case, split at spaces and punctuation, ``</s>`` at the end."""
    ids = {word: index for index, word in enumerate(VOCABULARY)}
    tokenizer = Tokenizer(models.WordLevel(ids, unk_token="<unk>"))
    tokenizer.normalizer = normalizers.Lowercase()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Punctuation()]
    )
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", ids["</s>"])]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
        model_max_length=CONTEXT_LENGTH,
        padding_side="right",
    )


def load_start(module: nn.Module, init: Path | None, name: str) -> bool:
    """Load start weights into ``module`` if ``init`` has any for it.

    Looks for ``init/<name>.safetensors``, then for a diffusers or transformers folder ``init/<name>/``.

    Returns:
        Whether weights were loaded.
    """
    if init is None:
        return False
    folder = init / name
    candidates = [init / f"{name}.safetensors", *sorted(folder.glob("*.safetensors"))]
    for path in candidates:
        if path.is_file():
            weights = {key: value.to(torch.float32) for key, value in load_file(path).items()}
            missing, unexpected = module.load_state_dict(weights, strict=False)
            tied = {"encoder.embed_tokens.weight", "shared.weight"}
            if set(missing) - tied or unexpected:
                raise ValueError(f"{path} does not fit {type(module).__name__}: {missing=}, {unexpected=}")
            return True
    return False
