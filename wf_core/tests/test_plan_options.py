"""Options that look at the rest of the request: defaults beside an effect, and values that take a fact's place."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.plugins.catalog import Catalog
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_resolve import MODEL, catalog, codes, feature, refusal

COMPILER = """
[[feature.option]]
name = "mode"
type = "choice"
choices = ["plain", "careful", "fast"]
default = "plain"
default_with = [{ effect = "captures-graph", value = "careful", unless = ["settings"] }]
[[feature.option]]
name = "settings"
type = "mapping"
"""


@pytest.fixture
def compilers(site: Site) -> Catalog:
    site.plugin("compiler", feature("compiler", COMPILER, "execution-mode"))
    site.plugin("graph", feature("graph", 'effects = ["captures-graph@denoiser"]\nstage = "graph"'))
    return catalog(site)


@pytest.mark.parametrize(
    ("request_", "mode"),
    [
        ({"compiler": True}, "plain"),
        ({"compiler": True, "graph": False}, "plain"),
        ({"compiler": True, "graph": True}, "careful"),
        ({"graph": True, "compiler": {"mode": "fast"}}, "fast"),
        ({"graph": True, "compiler": {"mode": "plain"}}, "plain"),
        ({"graph": True, "compiler": {"settings": {"a": 1}}}, "plain"),
    ],
)
def test_a_default_depends_on_the_effects_of_the_others(
    compilers: Catalog, request_: dict[str, Any], mode: str
) -> None:
    planned = resolve(request_, MODEL, compilers).feature("compiler")
    assert planned is not None
    assert planned.option("mode") == mode


def test_a_features_own_effect_is_none_of_the_others(site: Site) -> None:
    both = COMPILER.replace(
        '\n[[feature.option]]\nname = "mode"',
        '\neffects = ["captures-graph"]\n[[feature.option]]\nname = "mode"',
    )
    site.plugin("compiler", feature("compiler", both, "execution-mode"))
    [planned] = resolve({"compiler": True}, MODEL, catalog(site)).features
    assert planned.option("mode") == "plain"


def test_the_default_that_is_taken_is_judged_too(site: Site) -> None:
    refusing = 'option = "mode"\nne = "careful"\ncode = "TOY-2"\nreason = "{value} is not there yet"\n'
    condition = "[[feature.condition]]\n" + refusing
    site.plugin("compiler", feature("compiler", COMPILER + condition, "execution-mode"))
    site.plugin("graph", feature("graph", 'effects = ["captures-graph@denoiser"]\nstage = "graph"'))
    found = catalog(site)
    assert resolve({"compiler": True}, MODEL, found).features
    [violation] = refusal({"compiler": True, "graph": True}, MODEL, found).violations
    assert (violation.code, violation.reason) == ("TOY-2", "careful is not there yet")


CAST = """
[[feature.option]]
name = "dtype"
type = "choice"
choices = ["bfloat16", "float32"]
spellings = { bf16 = "bfloat16" }
sets = "model.dtype"
"""
HALF = '[[feature.condition]]\nfact = "model.dtype"\neq = "bfloat16"\nreason = "takes bfloat16, this is {value}"\n'


@pytest.fixture
def casts(site: Site) -> Catalog:
    site.plugin("cast", feature("cast", CAST))
    site.plugin("half", feature("half", HALF))
    return catalog(site)


def test_the_others_are_judged_by_the_value_that_takes_a_facts_place(casts: Catalog) -> None:
    full = MODEL.with_({"model.dtype": "float32"})
    assert [v.reason for v in refusal({"half": True}, full, casts).violations] == [
        "takes bfloat16, this is float32"
    ]
    plan = resolve({"half": True, "cast": {"dtype": "bf16"}}, full, casts)
    assert plan.feature("cast").option("dtype") == "bfloat16"  # type: ignore[union-attr]
    assert ("model.dtype", "bfloat16", "the request's cast") in plan.facts_used


def test_it_takes_the_facts_place_for_better_or_worse(casts: Catalog) -> None:
    half = MODEL.with_({"model.dtype": "bfloat16"})
    assert resolve({"half": True, "cast": True}, half, casts).features, "no value is given, so nothing is set"
    found = refusal({"half": True, "cast": {"dtype": "float32"}}, half, casts)
    assert codes(found) == ["WF-F001"]


# --- options whose feature is not asked for ------------------------------------------------------------------------

TILES = """
example = { tiling = true }
[[feature.option]]
name = "size"
type = "int"
[[feature.option]]
name = "step"
type = "int"
[[feature.option]]
name = "file"
type = "path"
[[feature.condition]]
option = "file"
present = true
code = "TOY-1"
reason = "tiling needs a file: give one."
[[feature.condition]]
any_of = [{ option = "size", present = false }, { fact = "model.family", eq = "other" }]
code = "TOY-2"
reason = "size is of the family other: leave it out."
[[feature.condition]]
option = "step"
lt = { option = "size" }
code = "TOY-3"
reason = "step {value} is not below size: give less."
"""
OPTION_SWITCHES = "".join(
    f'[[switch]]\nname = "tile_{name}"\nfeature = "tiling"\nform = "option"\noption = "{name}"\n'
    for name in ("size", "step")
)


@pytest.mark.parametrize(
    ("request_", "fixes"),
    [
        (
            {"tile_size": 4},
            ["With tiling it would be refused too: TOY-2 size is of the family other: leave it out."],
        ),
        ({"tile_step": 4}, ["Ask for it with tiling, or leave out tile_step."]),
        ({"tile_size": "no number"}, ["Ask for it with tiling, or leave out tile_size."]),
        ({"tile_size": 4, "tile_step": 3}, ["With tiling it would be refused too: TOY-2"] * 2),
    ],
)
def test_nobody_is_advised_to_ask_for_what_would_be_refused_in_turn(
    site: Site, request_: dict[str, Any], fixes: list[str]
) -> None:
    site.plugin("tiling", feature("tiling", TILES, "vae-decoder") + OPTION_SWITCHES)
    found = refusal(request_, MODEL, catalog(site))
    assert codes(found) == ["WF-R005"] * len(fixes)
    assert all(v.fix.startswith(fix) for v, fix in zip(found.violations, fixes, strict=True))
    assert found.nearest is not None and found.nearest.unset == tuple(sorted(request_))


def test_options_are_judged_together_and_with_the_facts(site: Site) -> None:
    site.plugin("tiling", feature("tiling", TILES, "vae-decoder") + OPTION_SWITCHES)
    other = MODEL.with_({"model.family": "other"})
    both = refusal({"tile_size": 4, "tile_step": 4}, other, catalog(site))
    told = [violation.fix for violation in both.violations if violation.code == "WF-R005"]
    assert told == ["With tiling it would be refused too: TOY-3 step 4 is not below size: give less."] * 2
    [one] = [v for v in refusal({"tile_size": 4}, other, catalog(site)).violations if v.code == "WF-R005"]
    assert one.fix == "Ask for it with tiling, or leave out tile_size."
