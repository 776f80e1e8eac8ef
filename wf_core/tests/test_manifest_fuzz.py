"""Whatever a manifest holds: it is read, or refused with one line; nothing else comes out of the reader."""

from __future__ import annotations

import copy
import datetime
import json
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wf_core.cli.list_plugins import listing
from wf_core.cli.show import describe
from wf_core.manifests.manifest import Manifest, ManifestError
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover

from .conftest import CACHE_MANIFEST, FAMILY_MANIFEST, Site
from .test_manifest import EVIDENCE, FEATURE, HEAD

RICH = (
    HEAD
    + '[packages]\nsome-package = ">=1"\n'
    + FEATURE
    + 'state = "unavailable: not implemented"\nseams = ["stack"]\nstage = "cache"\nbefore = ["x"]\n'
    + 'effects = ["melts(o)@stack", { effect = "compiles", when = { option = "o", eq = 1 } }]\n'
    + '[[feature.option]]\nname = "o"\ntype = "int"\nmin = 1\nmax = 9\ndefault = 2\n'
    + '[[feature.option]]\nname = "c"\ntype = "choice"\nchoices = ["a", "b"]\n'
    + '[[feature.option]]\nname = "l"\ntype = "floats"\nlength = 2\n'
    + '[[feature.condition]]\nany_of = [{ fact = "a", in_table = "t" }, { option = "o", le = { fact = "b" } }]\n'
    + 'reason = "r"\n[[feature]]\nname = "g"\ntier = "approximate"\ntolerance = "t"\n' + EVIDENCE
    + '[[switch]]\nname = "s"\nfeature = "f"\nform = "value"\noption = "o"\noff = [0]\naliases = ["s2"]\n'
    + '[[effect]]\nname = "melts"\ndoc = "d"\nnumbers = 1\n'
    + '[[rule]]\ncode = "A"\nlevel = "forbid"\npair = ["melts", "compiles"]\nreason = "r"\n'
    + '[[rule]]\ncode = "B"\nlevel = "forbid"\neffect = "melts"\nneeds = { fact = "a", eq = 1 }\nreason = "r"\n'
    + '[table.t]\nkeys = ["x", 1]\n'
    + '[[model]]\nname = "m"\nfamily = "toy"\npath = "x"\n[model.defaults]\nheight = 1\n'
)  # fmt: skip
FAMILY = FAMILY_MANIFEST + '[[family.condition]]\nfact = "model.heads"\nge = 8\nreason = "r"\n'
CACHE = CACHE_MANIFEST.format(name="p", api=1, feature="f", switch="f", more="")
TEXTS = [RICH, FAMILY.replace('name = "toy"', 'name = "p"', 1), CACHE]

SCALARS = st.one_of(
    st.booleans(),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(-2, 2),
    st.floats(),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=4),
    st.sampled_from(["f", "o", "exact", "stack", "compiles", "maybe: x", "unavailable: x", "ints", "choice", "*"]),
    st.just(datetime.date(2020, 1, 1)),
)  # fmt: skip
NAMES = st.sampled_from(["name", "fact", "option", "eq", "effect", "when", "from", "value", "file", "x"])
VALUES = st.recursive(
    SCALARS,
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(NAMES, inner, max_size=3)),
    max_leaves=4,
)


def places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The paths of everything inside a parsed manifest."""
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in pairs:
        yield (*path, key)
        yield from places(item, (*path, key))


def dump(value: Any) -> str:
    """A value as inline TOML."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {dump(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(dump, value)) + "]"
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007F")
    if isinstance(value, float):
        return repr(value) if value != int_like(value) else f"{value:.1f}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def int_like(value: float) -> float | None:
    return float(int(value)) if abs(value) < 1e15 else None


@st.composite
def mutated(draw: st.DrawFn) -> str:
    manifest = copy.deepcopy(tomllib.loads(draw(st.sampled_from(TEXTS))))
    for _ in range(draw(st.integers(1, 3))):
        path = draw(st.sampled_from(list(places(manifest))))
        holder = manifest
        for key in path[:-1]:
            holder = holder[key]
        if draw(st.booleans()):
            del holder[path[-1]]
        else:
            holder[path[-1]] = draw(VALUES)
    return "\n".join(f"{json.dumps(key)} = {dump(value)}" for key, value in manifest.items())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    site = Site(Path(tmp_path_factory.mktemp("fuzz")) / "site")
    site.plugin("p", HEAD + FEATURE)
    return site


@pytest.mark.parametrize("text", TEXTS)
def test_what_is_mutated_is_valid(tmp_path: Path, text: str) -> None:
    path = tmp_path / "wf-plugin.toml"
    path.write_text(
        "\n".join(f"{json.dumps(key)} = {dump(item)}" for key, item in tomllib.loads(text).items())
    )
    whole = Manifest.load(path)
    path.write_text(text)
    assert whole == Manifest.load(path)


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(text=mutated())
def test_a_mutated_manifest_is_read_or_refused_in_one_line(site: Site, text: str) -> None:
    path = site.folder / "toyplug_p" / "wf-plugin.toml"
    path.write_text(text, encoding="utf-8")
    with suppress(ManifestError):
        Manifest.load(path)
    discovery = discover([str(site.folder)], {})
    assert json.dumps(listing(list(discovery.plugins)))
    for offer in Catalog.of(discovery).features():
        assert json.dumps(describe(offer))
