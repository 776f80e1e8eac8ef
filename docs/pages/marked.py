"""Pages of which only a part is generated: what stands between ``<!-- generated: NAME -->`` and ``<!-- end -->``."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from pages.repository import ROOT

PART = re.compile(r"(<!-- generated: ([\w-]+) -->\n).*?(<!-- end -->)", re.S)


def fill(name: str, parts: Mapping[str, Callable[[], str]]) -> str:
    """The page with its parts written anew; the page has each of them once, and no other."""
    text = (ROOT / name).read_text(encoding="utf-8")
    marks = [found[2] for found in PART.finditer(text)]
    if sorted(marks) != sorted(parts):
        raise SystemExit(f"{name} must have the marks {', '.join(sorted(parts))}, and has {', '.join(marks)}")
    return PART.sub(lambda found: f"{found[1]}{parts[found[2]]().strip()}\n{found[3]}", text)
