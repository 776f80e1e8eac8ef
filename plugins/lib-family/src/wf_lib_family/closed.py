"""What is left in a copy when its session closes: a stand-in that holds nothing and says so when it is used."""

from __future__ import annotations

from typing import Any, NoReturn

SLOT = "_wf"
"""The attribute of a copy's root, VAE or linear layer that holds what the session put there."""

MESSAGE = "this model belongs to a session that is closed; open a new one"


class Closed:
    """Takes the place of ``RootCalls``, ``VaeCalls`` and a linear layer's chain; every use raises ``RuntimeError``."""

    def __call__(self, *args: Any, **kwargs: Any) -> NoReturn:
        raise RuntimeError(MESSAGE)

    decode = encode = __call__

    @property
    def wiring(self) -> NoReturn:
        raise RuntimeError(MESSAGE)


def close_slot(module: Any) -> None:
    """Put the stand-in into the module's slot, if the session had put anything there."""
    if SLOT in module.__dict__:
        setattr(module, SLOT, Closed())


def close_block(block: Any) -> None:
    """Take the open forward of a block away, which refers to the block that refers to it."""
    block.__dict__.pop("forward", None)
