"""The expressions of diffusers' ``CosmosTransformerBlock`` and of the blocks of HunyuanVideo that the kernels stand in
for: each step in the dtype of its operands.
"""

from __future__ import annotations


def norm_modulate(norm, x, scale, shift):
    return norm(x) * (1 + scale) + shift


def gated_residual(x, out, gate):
    return x + gate * out
