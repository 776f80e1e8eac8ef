"""docs/authors/conformance.md: every check with what it proves, and the class of each kind."""

from __future__ import annotations

from pages.markdown import code, codes, table, text
from pages.marked import fill
from wf_core.testing.checks import Check, all_checks
from wf_core.testing.conformance import CLASSES

NAME = "docs/authors/conformance.md"
ABOUT = {
    "plugin": "Of every plugin, once",
    "feature": "Of every feature of a technique",
    "family": "Of a model family",
    "model": "Of every model of a model source",
}


def page() -> str:
    """The whole page."""
    return fill(NAME, {"classes": _classes, "checks": _checks})


def _classes() -> str:
    rows = ([f"[{kind}](kinds/{kind}.md)", code(cls.__name__)] for kind, cls in CLASSES.items())
    return table(["kind", "class"], rows)


def _checks() -> str:
    groups = []
    for about, title in ABOUT.items():
        checks = [check for check in all_checks() if check.about == about]
        groups.append(f"### {title}\n\n" + table(["check", "proves", "comes after"], map(_row, checks)))
    assert {check.about for check in all_checks()} == set(ABOUT)
    return "\n".join(groups)


def _row(check: Check) -> list[str]:
    alone = "" if check.needs_code else " *Of the manifest alone.*"
    return [code(check.name), text(check.says) + alone, codes(check.after)]
