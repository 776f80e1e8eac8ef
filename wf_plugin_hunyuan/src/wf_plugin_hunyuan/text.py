"""The text stream and its padding: how long the text of each sample is, and the mask that leaves padding out.

Shapes: B samples, L image tokens, S text tokens, valid ones first in each sample. As keys, padded text tokens are left
out everywhere, so image tokens do not depend on them: cutting all text to the longest valid one is exact
mathematics, and where all samples are equally long no mask is left.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


def valid_lengths(mask: torch.Tensor) -> tuple[int, ...]:
    """The number of valid tokens of each sample of a mask ``[B, S]``, as the stock forward counts them."""
    counted: list[int] = mask.sum(dim=1, dtype=torch.int).tolist()
    return tuple(counted)


def cut_to(lengths: tuple[int, ...]) -> int:
    """How many text tokens the longest sample needs; at least one, since blocks split the streams by that number."""
    return max(1, *lengths)


def key_mask(lengths: torch.Tensor, image_tokens: int, text_tokens: int) -> torch.Tensor:
    """Bool ``[B, 1, 1, L + S]``, True for image tokens and the first ``lengths`` ``[B]`` text tokens."""
    places = torch.arange(image_tokens + text_tokens, device=lengths.device).unsqueeze(0)
    return (places < (image_tokens + lengths).unsqueeze(1)).unsqueeze(1).unsqueeze(1)


def mask_if_needed(
    lengths: tuple[int, ...], image_tokens: int, text_tokens: int, device: torch.device
) -> torch.Tensor | None:
    """The key mask of text that was cut to ``text_tokens``; None where it would let every pair attend."""
    if all(length == text_tokens for length in lengths):
        return None
    return key_mask(torch.tensor(lengths, device=device), image_tokens, text_tokens)


@dataclass(frozen=True, eq=False)
class TextLayout:
    """How HunyuanVideo-1.5 orders image, ByT5 and main text tokens: valid ones first, sample by sample.

    ``order`` ``[B, S]`` holds places in the three sources put one after another, ``valid`` ``[B, S]`` and ``zeroed``
    ``[B, S]`` are by the new places; ``zeroed`` are padded tokens of either text. ``no_image``: all image tokens are
    padding.
    """

    order: torch.Tensor
    valid: torch.Tensor
    zeroed: torch.Tensor
    no_image: bool
    lengths: tuple[int, ...]

    def apply(
        self, image: torch.Tensor, text_2: torch.Tensor, text: torch.Tensor, length: int
    ) -> torch.Tensor:
        """The first ``length`` tokens of the text stream ``[B, length, D]``."""
        sources = torch.cat([image, text_2, text], dim=1)
        order = self.order[:, :length].unsqueeze(-1).expand(-1, -1, sources.shape[-1])
        return sources.gather(1, order).masked_fill(self.zeroed[:, :length].unsqueeze(-1), 0)


def layout_of(mask: torch.Tensor, mask_2: torch.Tensor, image_embeds: torch.Tensor) -> TextLayout:
    """The layout for masks ``[B, S_text]`` and ``[B, S_byt5]``, and image embeddings ``[B, S_image, C]``, all of which
    are zero without an image.
    """
    no_image = bool(torch.all(image_embeds == 0))
    batch, images = image_embeds.shape[:2]
    image_mask = torch.full((batch, images), not no_image, device=mask.device)
    valid = torch.cat([image_mask, mask_2.bool(), mask.bool()], dim=1)
    order = torch.argsort((~valid).to(torch.uint8), dim=1, stable=True)
    sorted_valid = valid.gather(1, order)
    zeroed = ~sorted_valid & (order >= images)
    return TextLayout(order, sorted_valid, zeroed, no_image, tuple(valid.sum(dim=1).tolist()))
