"""The blocks of both generations: two streams, image tokens ``[B, L, D]`` and text tokens ``[B, S, D]``.

A handler of ``stack`` sees the image tokens alone, which are all that the output head takes. A handler of ``block``
sees both streams as one tensor ``[B, L + S, D]``, image tokens first: what it keeps of a block then continues the text,
too, when the block is left out. A cache at both seams compares what it sees at one with what it sees at the other, so
where a block is claimed, ``stack`` is given both streams as well. Only there are the two put together.
"""

from __future__ import annotations

from typing import Any

import torch

from wf_lib_family.sites import Span, Wrap
from wf_plugin_hunyuan.stock import blocks_of


class Stack:
    """All blocks behind the seams ``stack`` and ``block``: ``(x, text, ...)`` -> the image tokens ``[B, L, D]``.

    What is given beside the streams goes to every block, in the stock order.
    """

    def __init__(self, root: Any, wrap: Wrap) -> None:
        blocks = JointBlocks(root, wrap)
        self._joint = blocks.claimed
        self._span = Span(blocks if self._joint else Blocks(root), wrap, "stack")

    def __call__(self, x: torch.Tensor, text: torch.Tensor, *rest: Any) -> torch.Tensor:
        if not self._joint:
            out: torch.Tensor = self._span(x, text, *rest)
            return out
        length = x.shape[1]
        both: torch.Tensor = self._span(torch.cat([x, text], dim=1), length, *rest)
        return both[:, :length]


class Blocks:
    """One block after another on streams that are apart; no block is claimed."""

    def __init__(self, root: Any) -> None:
        self._blocks = [block for block, _, _ in blocks_of(root)]

    def __call__(self, x: torch.Tensor, text: torch.Tensor, *rest: Any) -> torch.Tensor:
        for block in self._blocks:
            x, text = block(x, text, *rest)
        return x


class JointBlocks:
    """One block after another on both streams as one tensor: ``(joint, length, ...)``, where ``length`` counts image
    tokens.
    """

    def __init__(self, root: Any, wrap: Wrap) -> None:
        self._blocks = [
            Span(OnJoint(block), wrap, "block", path=path, index=index)
            for block, path, index in blocks_of(root)
        ]
        self.claimed = any(block.claimed for block in self._blocks)

    def __call__(self, joint: torch.Tensor, length: int, *rest: Any) -> torch.Tensor:
        for block in self._blocks:
            joint = block(joint, length, *rest)
        return joint


class OnJoint:
    """One stock block on both streams as one tensor."""

    __slots__ = ("_block",)

    def __init__(self, block: Any) -> None:
        self._block = block

    def __call__(self, joint: torch.Tensor, length: int, *rest: Any) -> torch.Tensor:
        return torch.cat(self._block(joint[:, :length], joint[:, length:], *rest), dim=1)
