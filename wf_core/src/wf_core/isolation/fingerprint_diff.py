"""Two fingerprints told apart in words: one line per difference, for people."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from wf_core.isolation.tensor_identity import TENSOR_FIELDS

Record = tuple[Any, ...]
Records = Mapping[str, Record]

MODULE_FIELDS = (
    "module",
    "class",
    "forward",
    "compiled",
    "torch hooks",
    "processor",
    "attributes",
    "values",
    "diffusers hooks",
    "configuration",
    "parametrised class",
    "non-persistent buffers",
)
PIPELINE_FIELDS = ("component", "class", "configuration")


def below(path: str, covered: set[str]) -> bool:
    """Whether ``path`` lies under a module that was already reported as a whole."""
    while path:
        path = path.rpartition(".")[0]
        if path in covered:
            return True
    return False


def structure_diff(before: Records, after: Records) -> tuple[list[str], set[str]]:
    """Lines about modules and the pipeline, and the paths reported as a whole (replaced, added, removed)."""
    lines: list[str] = []
    covered: set[str] = set()
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new or below(path, covered):
            continue
        if old is None or new is None:
            lines.append(f"{path}: {'added' if old is None else 'removed'} ({_class_name(new or old)})")
            covered.add(path)
        elif old[0] != new[0]:
            lines.append(f"{path}: replaced ({_class_name(old)} -> {_class_name(new)})")
            covered.add(path)
        else:
            lines += _field_lines(path, old, new)
    return lines, covered


def _class_name(record: Record | None) -> str:
    cls = record[1] if record else None
    return cls.__name__ if isinstance(cls, type) else str(cls)


def _field_lines(path: str, old: Record, new: Record) -> list[str]:
    fields = MODULE_FIELDS if len(old) == len(MODULE_FIELDS) else PIPELINE_FIELDS
    pairs = zip(fields, old, new, strict=True)
    return [f"{path}: {name} {_change(name, a, b)}" for name, a, b in pairs if a != b]


def _change(name: str, old: Any, new: Any) -> str:
    """A readable account of one field's change; ids are of no use to a reader and are left out."""
    if name == "values":
        a, b = dict(old), dict(new)
        changed = sorted(key for key in a.keys() | b.keys() if a.get(key) != b.get(key))
        return ", ".join(f"{key} {a.get(key)!r} -> {b.get(key)!r}" for key in changed) or "reordered"
    if isinstance(old, frozenset):
        parts = [f"+{key}" for key in sorted(new - old)] + [f"-{key}" for key in sorted(old - new)]
        return " ".join(parts)
    if name == "torch hooks":
        return f"{_hook_count(old)} -> {_hook_count(new)}"
    if name in ("forward", "processor"):
        first, second = (value[0] if value else "none" for value in (old, new))
        return f"{first} -> {second}" if first != second else f"{first}: another object or other values"
    if name == "diffusers hooks":
        return f"{', '.join(old) or 'none'} -> {', '.join(new) or 'none'}"
    if name in ("class", "compiled"):
        return f"{getattr(old, '__name__', old)} -> {getattr(new, '__name__', new)}"
    return "changed"


def _hook_count(tables: Record) -> str:
    return ", ".join(f"{len(hooks)} in {key}" for key, hooks in tables) or "none"


WHERE = ("tensor object", "data pointer", "storage offset", "device", "version")
"""What differs of a tensor that was moved to another device and back."""


def tensor_diff(before: Records, after: Records, covered: set[str], moved: Collection[str] = ()) -> list[str]:
    """Lines about tensors but for those below a path in ``covered``; below one in ``moved`` a move is no difference."""
    lines = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old == new or below(path, covered):
            continue
        if old is None or new is None:
            lines.append(f"{path}: tensor {'added' if old is None else 'removed'}")
            continue
        ignored = WHERE if below(path, set(moved)) else ()
        changes = list(_tensor_changes(old, new, ignored))
        if changes or not ignored:
            lines.append(f"{path}: {', '.join(changes) or 'inner tensors changed'}")
    return lines


def _tensor_changes(old: Record, new: Record, ignored: Collection[str]) -> Iterator[str]:
    for name, a, b in zip(TENSOR_FIELDS, old, new, strict=False):
        if a != b and name not in ignored:
            silent = name in ("tensor object", "data pointer")
            yield f"{name} {'replaced' if silent else f'{a} -> {b}'}"


def run_state_diff(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Lines about what a run changes, marked as such."""
    keys = sorted(key for key in before.keys() | after.keys() if before.get(key) != after.get(key))
    return [f"{key} {before.get(key, 'absent')} -> {after.get(key, 'absent')} (run state)" for key in keys]
