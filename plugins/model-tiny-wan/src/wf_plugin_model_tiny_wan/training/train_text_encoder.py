"""Give the text encoder something to say: colour, digit and direction must be readable from its output.

The denoiser then trains on fixed embeddings, of which there are only 281 (the prompts and the empty one).
"""

import torch
import torch.nn.functional as F
from torch import nn
from transformers import PreTrainedTokenizerFast, UMT5EncoderModel

from wf_plugin_model_tiny_wan.clips import all_prompts, parse_prompt
from wf_plugin_model_tiny_wan.training.lean_forward import CONTEXT_ROWS


def train_text_encoder(encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerFast, steps: int) -> None:
    """Train ``encoder`` in place to let three linear heads name what a prompt asks for."""
    prompts = all_prompts()
    answers = torch.tensor([parse_prompt(text) for text in prompts])
    tokens = tokenizer(prompts, return_tensors="pt")
    heads = nn.ModuleList(nn.Linear(encoder.config.d_model, size) for size in (7, 10, 4))
    adam = torch.optim.AdamW([*encoder.parameters(), *heads.parameters()], lr=1e-3)
    encoder.train()
    for _ in range(steps):
        rows = torch.randint(len(prompts), (64,))
        output = encoder(tokens.input_ids[rows], tokens.attention_mask[rows]).last_hidden_state.mean(1)
        loss = sum(F.cross_entropy(head(output), answers[rows, i]) for i, head in enumerate(heads))
        adam.zero_grad()
        loss.backward()
        adam.step()
    encoder.eval().requires_grad_(False)
    print(f"text encoder: {steps} steps", flush=True)


@torch.no_grad()
def encode_prompts(
    encoder: UMT5EncoderModel, tokenizer: PreTrainedTokenizerFast, prompts: list[str]
) -> torch.Tensor:
    """Return embeddings ``[len(prompts), N, 64]`` as the stock pipeline makes them, N shortened context rows."""
    tokens = tokenizer(prompts, padding="max_length", max_length=CONTEXT_ROWS, return_tensors="pt")
    hidden = encoder(tokens.input_ids, tokens.attention_mask).last_hidden_state
    return hidden * tokens.attention_mask[..., None]
