"""Give one object a subclass of its own class, so that it can be told what happens at its outermost call.

Only the session's own copies are treated so: a denoiser root, a VAE, the pipeline. The subclass keeps the stock name
and module, is made once per stock class and holds no state; what belongs to a session is an attribute of the object.
Blocks are never subclassed, because libraries look blocks up by their exact class.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

Maker = Callable[[Any], Mapping[str, Any]]


@cache
def subclass(stock: Any, maker: Maker) -> Any:
    """The subclass of ``stock`` whose namespace is ``maker(stock)``. The same pair gives the same class."""
    namespace = {
        "__module__": stock.__module__,
        "__qualname__": stock.__qualname__,
        "__doc__": stock.__doc__,
        **maker(stock),
    }
    return type(stock)(stock.__name__, (stock,), namespace)


def specialise(target: Any, maker: Maker) -> None:
    """Change ``target``'s class to the subclass that ``maker`` describes."""
    stock: Any = type(target)
    target.__class__ = subclass(stock, maker)
