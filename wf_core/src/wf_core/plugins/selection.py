"""``WF_BLOCK`` and ``WF_ONLY``: which plugins the user does not want, by plugin name or ``dist:NAME``."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import attrs

from wf_core.names import did_you_mean, normalise

DIST = "dist:"
MOST_PROBLEMS = 8


@attrs.frozen
class Target:
    """The names by which one plugin can be meant."""

    plugin: str
    distribution: str

    def spellings(self) -> tuple[str, ...]:
        """In the order in which a bare name is looked up: plugin, ``dist:``, then the distribution's own name."""
        return (normalise(self.plugin), DIST + normalise(self.distribution), normalise(self.distribution))


@attrs.frozen
class Selection:
    """The parsed variables. Names are in normal form; ``problems`` are sentences about names of no plugin."""

    block: tuple[str, ...] = ()
    only: tuple[str, ...] | None = None
    problems: tuple[str, ...] = ()

    @classmethod
    def from_environ(cls, environ: Mapping[str, str], targets: Iterable[Target]) -> Selection:
        """Reads both variables. A name that means no installed plugin is a problem, with near matches."""
        known = {spelling for target in targets for spelling in target.spellings()}
        only = environ.get("WF_ONLY", "").strip()
        block, unknown = _names("WF_BLOCK", environ.get("WF_BLOCK", ""), known)
        kept, unknown_kept = _names("WF_ONLY", only, known)
        return cls(block, kept if only else None, (*unknown, *unknown_kept))

    def why_blocked(self, target: Target) -> str:
        """The reason why a plugin is blocked, "" when it is not."""
        meant = set(target.spellings())
        hit = next((name for name in self.block if name in meant), "")
        if hit:
            return f"WF_BLOCK names {hit}"
        if self.only is not None and not meant & set(self.only):
            return "WF_ONLY is set and does not name it"
        return ""


def _names(variable: str, text: str, known: set[str]) -> tuple[tuple[str, ...], list[str]]:
    names: list[str] = []
    problems: list[str] = []
    for word in re.split(r"[,\s]+", text.strip()):
        if not word:
            continue
        is_dist = word.lower().startswith(DIST)
        name = DIST + normalise(word[len(DIST) :]) if is_dist else normalise(word)
        if name not in known and len(problems) == MOST_PROBLEMS:
            return tuple(dict.fromkeys(names)), [*problems, "and more"]
        if name not in known:
            pool = [other for other in known if other.startswith(DIST) == is_dist]
            hint = did_you_mean(name, pool, "; `wf list-plugins` shows the names that work")
            problems.append(f"{variable} names {word!r}, but no plugin of that name is installed{hint}")
        else:
            names.append(name)
    return tuple(dict.fromkeys(names)), problems
