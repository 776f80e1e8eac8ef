"""Count what a model really computes, from outside the host."""

from __future__ import annotations

from types import TracebackType

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
