"""Signatures and docstrings as they stand in the source: what a page says of a class is what an author would read."""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Iterator
from itertools import pairwise
from typing import Any


def signature(function: ast.FunctionDef) -> str:
    """``name(arguments) -> result``, without ``self``."""
    arguments = ast.unparse(function.args)
    if arguments.partition(",")[0] in ("self", "cls"):
        arguments = arguments.partition(",")[2].strip()
    result = f" -> {ast.unparse(function.returns)}" if function.returns else ""
    return f"{function.name}({arguments}){result}"


def definition(found: Any) -> Any:
    """The node of a function or class."""
    return ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]


def methods(cls: type) -> Iterator[ast.FunctionDef]:
    """The public methods and properties that a class defines itself and says something about."""
    for node in definition(cls).body:
        if isinstance(node, ast.FunctionDef) and not node.name.startswith("_") and ast.get_docstring(node):
            yield node


def abstract(method: ast.FunctionDef) -> bool:
    """Whether a subclass must write it."""
    return any("abstractmethod" in ast.unparse(decorator) for decorator in method.decorator_list)


def is_property(method: ast.FunctionDef) -> bool:
    """Whether it is read and not called."""
    return any("property" in ast.unparse(decorator) for decorator in method.decorator_list)


def said(docstring: str | None) -> str:
    """A docstring as Markdown on one line; its paragraphs run on."""
    return re.sub(r"``(.+?)``", r"`\1`", " ".join((docstring or "").split()))


def constants(module: Any) -> dict[str, str]:
    """What a module says of its constants: the text that stands after each."""
    body = ast.parse(inspect.getsource(module)).body
    found = {}
    for node, after in pairwise(body):
        if isinstance(node, ast.Assign | ast.AnnAssign) and isinstance(after, ast.Expr):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name) and isinstance(after.value, ast.Constant):
                found[target.id] = said(str(after.value.value))
    return found
