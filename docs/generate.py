"""Writes what is generated from the core's tables and the manifests of this repository: the pages in docs/ that say so
at their top or between two marks, and the core's table of switches that are known but not installed. One
module in docs/pages/ for each.

``--check`` writes nothing and ends with exit code 1, naming the files, when one is not up to date.
"""

from __future__ import annotations

import sys
from collections.abc import Callable

from pages import (
    api,
    caches,
    conformance,
    families,
    kinds,
    known_switches,
    manifest,
    models,
    overview,
    performance,
    plugins,
    rules,
    switches,
)
from pages.repository import ROOT

FILES: dict[str, Callable[[], str]] = {
    "docs/authors/README.md": overview.page,
    "docs/authors/api.md": api.page,
    "docs/authors/conformance.md": conformance.page,
    "docs/authors/manifest.md": manifest.page,
    **kinds.pages(),
    "docs/caches.md": caches.page,
    "docs/families.md": families.page,
    "docs/models.md": models.page,
    "docs/performance.md": performance.page,
    "docs/plugins.md": plugins.page,
    "docs/rules.md": rules.page,
    "docs/switches.md": switches.page,
    "wf_core/src/wf_core/data/known_switches.toml": known_switches.page,
}


def main() -> int:
    check = "--check" in sys.argv[1:]
    stale = []
    for name, page in FILES.items():
        path, text = ROOT / name, page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not check:
            path.write_text(text, encoding="utf-8")
            print(f"wrote {name}")
    if check and stale:
        print(f"not up to date, run `make docs`: {', '.join(stale)}", file=sys.stderr)
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
