"""What the stock pipelines and processors take for granted, and more than one module here must know."""

from __future__ import annotations

EXPERTS = ("transformer", "transformer_2")
"""The component names of a pipeline's denoisers, the first (high-noise) expert first."""

TEXT_TOKENS = 512
"""With image tokens, the stock processor takes the last 512 context tokens for the text and the rest for the image."""
