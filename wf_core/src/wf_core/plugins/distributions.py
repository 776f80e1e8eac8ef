"""Looking at installed distributions for entry points of the group ``wf.plugins``, without importing anything.

Several metadata folders may stand for one distribution (an editable install beside a stale ``egg-info``, a folder
that is on the path twice); they are one candidate with a note on the others.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from importlib import metadata
from pathlib import Path

import attrs

from wf_core.names import normalise

GROUP = "wf.plugins"


@attrs.frozen
class Entry:
    """One line ``name = value`` of an entry-point group; ``value`` is ``module`` or ``module:attribute``."""

    name: str
    value: str

    @property
    def module(self) -> str:
        """The module that the entry names, "" when there is none."""
        return self.value.partition(":")[0].partition("[")[0].strip()

    @property
    def attribute(self) -> str:
        """The attribute after the colon, "" when the module itself is the plugin."""
        return self.value.partition(":")[2].partition("[")[0].strip()


@attrs.frozen
class Candidate:
    """A distribution that declares plugins: its raw name, version, entries, and where its metadata lies.

    ``fault`` says why its metadata cannot be used, "" when it can.
    """

    name: str
    version: str
    entries: tuple[Entry, ...]
    folder: Path
    root: Path
    notes: tuple[str, ...] = ()
    fault: str = ""

    @property
    def normal_name(self) -> str:
        """The name in normal form."""
        return normalise(self.name)


def candidates(path: Sequence[str] | None = None) -> tuple[Candidate, ...]:
    """Every distribution on the path (default ``sys.path``) with the group, each once, in path order."""
    found: dict[str, list[Candidate]] = {}
    for candidate in _all(list(sys.path if path is None else path)):
        found.setdefault(candidate.normal_name, []).append(candidate)
    return tuple(merged for same in found.values() for merged in _merge(same))


def parse_entries(text: str) -> tuple[Entry, ...] | None:
    """The entries of the group in an ``entry_points.txt``; None when the group is not there at all."""
    entries: list[Entry] = []
    section, seen = "", False
    for raw in text.splitlines():
        line = raw.strip()
        if not line or line[0] in "#;":
            continue
        if line.startswith("[") and line.endswith("]"):
            section = line[1:-1].strip()
            seen = seen or section == GROUP
        elif section == GROUP:
            name, _, value = line.partition("=")
            entries.append(Entry(name.strip(), value.strip()))
    return tuple(entries) if seen else None


def _all(path: list[str]) -> Iterator[Candidate]:
    for distribution in metadata.distributions(path=path):
        folder = Path(str(getattr(distribution, "_path", "")))
        text, garbled = _entry_points(distribution, folder)
        entries = parse_entries(text) if text else None
        if entries is None:
            continue
        name, version, fault = _identity(distribution, folder)
        if name:  # a left-over folder without metadata stands for no distribution
            root = Path(str(distribution.locate_file("")))
            yield Candidate(name, version, entries, folder, root, fault=garbled or fault)


def _entry_points(distribution: metadata.Distribution, folder: Path) -> tuple[str, str]:
    """The text of ``entry_points.txt`` and what is wrong with it; a file that cannot be read declares nothing."""
    try:
        return distribution.read_text("entry_points.txt") or "", ""
    except UnicodeDecodeError:
        pass
    except (OSError, ValueError):
        return "", ""
    try:
        garbled = (folder / "entry_points.txt").read_bytes().decode("utf-8", "replace")
    except OSError:
        return "", ""
    return garbled, f"{folder / 'entry_points.txt'} is not UTF-8; install it again"


def _identity(distribution: metadata.Distribution, folder: Path) -> tuple[str, str, str]:
    """Name, version and what is wrong with the metadata; then name and version are those of its folder."""
    try:
        fields = distribution.metadata
        name = str(fields["Name"] or "") if fields is not None and "Name" in fields else ""
        version = str(fields["Version"] or "") if name and "Version" in fields else ""
    except (OSError, ValueError):
        name, _, version = folder.stem.partition("-")
        return name, version, f"the metadata in {folder} cannot be read; install it again"
    return name, version, ""


def _merge(same: list[Candidate]) -> Iterator[Candidate]:
    """One candidate per spelling of the name: metadata before a source tree's ``egg-info``, then path order."""
    spellings = dict.fromkeys(candidate.name for candidate in same)
    for spelling in spellings:
        group = [candidate for candidate in same if candidate.name == spelling]
        group.sort(key=lambda candidate: candidate.folder.suffix == ".egg-info")
        used, others = group[0], group[1:]
        notes = tuple(dict.fromkeys(_note(used, other) for other in others))
        yield attrs.evolve(used, notes=notes)


def _note(used: Candidate, other: Candidate) -> str:
    if _resolved(other.folder) == _resolved(used.folder):
        return f"{other.root} is on the path more than once"
    version = f" (version {other.version})" if other.version != used.version else ""
    return f"metadata also found at {other.folder}{version}, not used"


def _resolved(folder: Path) -> str:
    return str(folder.resolve())
