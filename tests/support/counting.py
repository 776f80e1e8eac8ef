"""Count what a model really computes, from outside the host."""

from __future__ import annotations

from collections.abc import Iterable
from types import TracebackType
from typing import Any

import torch
from torch import nn


class BlockCalls:
    """Counts the self-attentions that run: never the blocks, since a cached block may still be called."""

    def __init__(self, model: nn.Module) -> None:
        self.count = 0
        self._model = model
        self._hooks: list[object] = []

    def __enter__(self) -> BlockCalls:
        for block in self._model.blocks:
            self._hooks.append(block.attn1.register_forward_hook(self._seen))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for hook in self._hooks:
            hook.remove()

    def _seen(self, *_: object) -> None:
        self.count += 1


def graphs_of_compiled(blocks: Iterable[nn.Module]) -> list[Any]:
    """Compiles each block whole, to run as it is traced; the graphs that are made from now on are put into the list."""
    torch.compiler.reset()
    graphs: list[Any] = []

    def keep(graph: Any, inputs: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    for block in blocks:
        block.compile(backend=keep, fullgraph=True)
    return graphs
