"""Which stock source the open forwards of a family were proven equal to.

Open mode repeats stock code, so it is offered only where the stock source is one that was tested. Anything else makes
the seam unavailable, with a reason; stock mode does not depend on the source.
"""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping
from functools import cache
from types import ModuleType
from typing import Any


@cache
def source_hash(stock: Any) -> str:
    """sha256 of the source text; empty where the source cannot be read."""
    try:
        return hashlib.sha256(inspect.getsource(stock).encode()).hexdigest()
    except (OSError, TypeError):
        return ""


class TestedSources:
    """``tested``: name of a class or function of the stock ``modules`` -> the sha256 values of ``inspect.getsource``
    that the open forwards equal, by test.
    """

    __test__ = False

    def __init__(self, modules: Iterable[ModuleType], tested: Mapping[str, frozenset[str]]) -> None:
        self._modules = tuple(modules)
        self._tested = tested

    def stock(self, name: str) -> Any:
        """The class or function of that name of the stock modules, None if there is none."""
        return next((found for m in self._modules if (found := getattr(m, name, None)) is not None), None)

    def untested(self, *names: str) -> str:
        """Why these stock sources are not the tested ones; empty if they are."""
        known = self._tested
        different = [n for n in names if source_hash(self.stock(n)) not in known.get(n, frozenset())]
        return f"untested diffusers version: source of {', '.join(different)} differs" if different else ""

    def why(self, where: str, parts: Iterable[Any], names: Iterable[str] = ()) -> str:
        """Why the open forms do not fit the ``parts`` of a model: a foreign class, or another source of the classes of
        the parts and of ``names``; empty if they fit.
        """
        kinds = {type(part) for part in parts}
        foreign = sorted(kind.__name__ for kind in kinds if not self._is_stock(kind))
        if foreign:
            return f"{where} is of class {', '.join(foreign)}, which is not diffusers' own"
        return self.untested(*(tuple(names) or sorted(kind.__name__ for kind in kinds)))

    def _is_stock(self, kind: type) -> bool:
        """Whether the class is diffusers' own, or the session's subclass of it (same name and module)."""
        stock = self.stock(kind.__name__)
        return stock is not None and issubclass(kind, stock) and kind.__module__ == stock.__module__
