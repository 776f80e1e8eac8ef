"""Requests: spellings, forms of switches, off values, merging, and every problem named with the next step."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.request import ParsedRequest, parse_request

from .conftest import Site

VAE_MANIFEST = """
schema = 1
name = "vae-toy"
api = 1
kind = "vae-decoder"
[[feature]]
name = "tiling"
tier = "exact"
evidence = [{ counter = "calls", at_least = 1 }]
[[feature.option]]
name = "tile_size"
type = "ints"
length = 2
default = [34, 34]
[[feature]]
name = "chunking"
tier = "exact"
evidence = [{ counter = "calls", at_least = 1 }]
[[feature.option]]
name = "frames"
type = "int"
min = 1
[[feature]]
name = "placement"
tier = "exact"
evidence = [{ counter = "calls", at_least = 1 }]
[[feature.option]]
name = "mode"
type = "choice"
choices = ["async-block", "component"]
[[switch]]
name = "vae_tiling"
aliases = ["tiled"]
feature = "tiling"
form = "flag"
off = [false]
[[switch]]
name = "vae_tile_size"
feature = "tiling"
form = "option"
option = "tile_size"
[[switch]]
name = "vae_chunk"
feature = "chunking"
form = "value"
option = "frames"
off = [0]
[[switch]]
name = "offload"
feature = "placement"
form = "value"
option = "mode"
off = ["resident", "none"]
"""


@pytest.fixture
def catalog(site: Site) -> Catalog:
    site.family()
    site.cache("cache-alpha")
    site.cache("cache-beta")
    site.plugin("vae-toy", VAE_MANIFEST)
    return Catalog.of(discover([str(site.folder)], {}))


def demands(parsed: ParsedRequest) -> dict[str, dict[str, Any]]:
    assert parsed.problems == ()
    return {demand.feature: dict(demand.options) for demand in parsed.demands}


@pytest.mark.parametrize(
    ("request_", "expected"),
    [
        ({}, {}),
        ({"feature_cache": "alpha"}, {"alpha": {}}),
        ({"feature-cache": "Alpha"}, {"alpha": {}}),
        ({"feature_cache": {"algorithm": "alpha", "threshold": "0.5"}}, {"alpha": {"threshold": 0.5}}),
        ({"feature_cache": "alpha", "feature_cache.threshold": 0.5}, {"alpha": {"threshold": 0.5}}),
        ({"feature_cache.algorithm": "alpha", "feature-cache.threshold": 0.5}, {"alpha": {"threshold": 0.5}}),
        ({"feature_cache": "none"}, {}),
        ({"feature_cache": None}, {}),
        ({"feature_cache": {"algorithm": "none"}}, {}),
        ({"alpha": True}, {"alpha": {}}),
        ({"alpha": "true"}, {"alpha": {}}),
        ({"alpha": False}, {}),
        ({"alpha": 0.1}, {"alpha": {"threshold": 0.1}}),
        ({"alpha": "0.1"}, {"alpha": {"threshold": 0.1}}),
        ({"alpha": {"threshold": 0.1}}, {"alpha": {"threshold": 0.1}}),
        ({"alpha.threshold": 0.1}, {"alpha": {"threshold": 0.1}}),
        ({"alpha": 0.1, "feature_cache": "alpha"}, {"alpha": {"threshold": 0.1}}),
        ({"feature_cache": "alpha", "alpha.coefficients": [1, 2]}, {"alpha": {"coefficients": (1.0, 2.0)}}),
        ({"feature_cache": "none", "alpha": True}, {"alpha": {}}),
        ({"vae_tiling": True}, {"tiling": {}}),
        ({"tiled": True, "vae-tile-size": "16,8"}, {"tiling": {"tile_size": (16, 8)}}),
        ({"vae_tiling": True, "tiled": True}, {"tiling": {}}),
        ({"vae_tiling": False}, {}),
        ({"vae_chunk": 2}, {"chunking": {"frames": 2}}),
        ({"vae_chunk": 0}, {}),
        ({"vae_chunk": "0"}, {}),
        ({"offload": "Resident"}, {}),
        ({"offload": "component"}, {"placement": {"mode": "component"}}),
        ({"on_ineligible": "dense"}, {}),
    ],
)
def test_what_a_request_asks_for(
    catalog: Catalog, request_: dict[str, Any], expected: dict[str, Any]
) -> None:
    assert demands(parse_request(request_, catalog)) == expected


@pytest.mark.parametrize(
    ("request_", "code", "involves", "words"),
    [
        ({"featur_cache": "alpha"}, "WF-R001", ("featur_cache",), "did you mean feature_cache"),
        ({"cuda_graph": True}, "WF-R008", ("cuda_graph",), "not installed"),
        ({"feature_cache": "easycache"}, "WF-R008", ("feature_cache", "easycache"), "not installed"),
        ({"feature_cache": "alpa"}, "WF-R002", ("feature_cache", "alpa"), "did you mean alpha"),
        ({"feature_cache": {"threshold": 1}}, "WF-R002", ("feature_cache",), "alpha, beta"),
        ({"feature_cache.threshold": 1}, "WF-R002", ("feature_cache",), "algorithm"),
        ({"feature_cache": True}, "WF-R003", ("feature_cache",), "expects a name or a mapping"),
        ({"feature_cache": 3}, "WF-R003", ("feature_cache",), "got 3"),
        (
            {"feature_cache": {"algorithm": "none", "threshold": 1}},
            "WF-R005",
            ("feature_cache", "threshold"),
            "ignored",
        ),
        (
            {"feature_cache": {"algorithm": "alpha", "treshold": 1}},
            "WF-R006",
            ("feature_cache", "treshold"),
            "threshold",
        ),
        (
            {"feature_cache": {"algorithm": "alpha", "threshold": 2}},
            "WF-R003",
            ("feature_cache", "threshold"),
            "0 < x",
        ),
        ({"alpha": float("nan")}, "WF-R003", ("alpha",), "finite"),
        ({"alpha": "often"}, "WF-R003", ("alpha",), "finite"),
        ({"alpha": 0.1, "alpha.threshold": 0.2}, "WF-R004", ("alpha", "threshold"), "0.1 and 0.2"),
        (
            {"alpha": 0.1, "feature_cache.algorithm": "alpha", "feature_cache.threshold": 0.2},
            "WF-R004",
            None,
            "0.1 and 0.2",
        ),
        (
            {"vae_tiling": True, "tiled": False},
            "WF-R004",
            ("vae_tiling", "tiled"),
            "tiled and vae_tiling are one switch and have different values: false and true",
        ),
        ({"alpha": False, "alpha.threshold": 0.2}, "WF-R005", ("alpha", "threshold"), "off"),
        (
            {"vae_tile_size": [34, 34]},
            "WF-R005",
            ("vae_tile_size", "vae_tiling", "tiling"),
            "would be ignored",
        ),
        (
            {"vae_tiling": False, "vae_tile_size": [34, 34]},
            "WF-R005",
            ("vae_tile_size", "vae_tiling", "tiling"),
            "would be ignored",
        ),
        (
            {"vae_tiling": True, "vae_tile_size": 5},
            "WF-R003",
            ("vae_tile_size", "tile_size"),
            "vae_tile_size: expects",
        ),
        ({"vae_tiling": 1}, "WF-R003", ("vae_tiling",), "true or false"),
        ({"vae_tiling": {"tile_size": 3}}, "WF-R003", ("vae_tiling",), "true or false"),
        ({"vae_chunk.frames": 3}, "WF-R003", ("vae_chunk",), "needs a value of its own"),
        ({"vae_chunk": -1}, "WF-R003", ("vae_chunk",), "out of range"),
        ({"offload": "asyncblock"}, "WF-R003", ("offload",), "did you mean async-block"),
        ({"on_ineligible": "sparse"}, "WF-R003", ("on_ineligible",), "error, dense"),
        ({"profile": "oficial"}, "WF-R003", ("profile",), "did you mean official"),
        ({"goal": "speed"}, "WF-R003", ("goal",), "none, exact, fast, memory"),
        ({"goal.size": 1}, "WF-R006", ("goal", "size"), "has no option 'size'"),
        ({"goal": "memory", "budget": "24GX"}, "WF-R003", ("budget",), "a number of bytes"),
        ({"budget": "24GiB"}, "WF-R005", ("budget", "goal"), "belongs to goal, which is not given"),
    ],
)
def test_what_is_wrong_with_a_request(
    catalog: Catalog, request_: dict[str, Any], code: str, involves: tuple[str, ...] | None, words: str
) -> None:
    problems = parse_request(request_, catalog).problems
    assert [problem.code for problem in problems] == [code]
    assert words in problems[0].reason
    assert problems[0].reason.endswith((".", "?"))
    assert involves is None or problems[0].involves == involves


def test_zero_is_a_number_and_not_off(catalog: Catalog) -> None:
    [problem] = parse_request({"alpha": 0}, catalog).problems
    assert (problem.code, problem.reason) == ("WF-R003", "alpha: 0.0 is out of range, expects 0 < x <= 1.")
    assert parse_request({"alpha": False}, catalog).demands == ()
    twice = parse_request({"vae_chunk": 0, "vae-chunk": False}, catalog).problems
    assert "WF-R004" in [problem.code for problem in twice]


def test_the_familys_own_key_is_named_before_a_plugin_to_install(site: Site) -> None:
    site.family()
    found = Catalog.of(discover([str(site.folder)], {}))
    [problem] = parse_request({"vae-tiles": True}, found, "toy").problems
    assert (problem.code, problem.fix) == ("WF-R009", "Use toy_tiles.")
    assert [p.code for p in parse_request({"vae-tiles": True}, found, "").problems] == ["WF-R001"]
    text = VAE_MANIFEST.replace('"vae_tiling"', '"vae_tiles"')
    site.plugin("vae-toy", text)
    served = Catalog.of(discover([str(site.folder)], {}))
    assert parse_request({"vae-tiles": True}, served, "toy").problems == ()


def test_all_problems_are_collected(catalog: Catalog) -> None:
    request = {"alpa": 1, "vae_chunk": -1, "vae_tile_size": [1, 1], "profile": "none"}
    assert [p.code for p in parse_request(request, catalog).problems] == ["WF-R001", "WF-R003", "WF-R005"]


def test_a_missing_plugin_is_named_with_its_distribution(catalog: Catalog) -> None:
    [problem] = parse_request({"feature_cache": "easycache"}, catalog).problems
    assert problem.fix == "Install wf-plugin-cache-easycache."


def test_the_request_in_normal_form(catalog: Catalog) -> None:
    one = parse_request({"tiled": True, "feature-cache": {"threshold": 0.5, "algorithm": "alpha"}}, catalog)
    other = parse_request(
        {"feature_cache": {"algorithm": "alpha", "threshold": 0.5}, "vae_tiling": True}, catalog
    )
    assert one.request == other.request
    assert dict(one.request)["vae_tiling"] is True
    assert one.host_keys["on_ineligible"] == "error"
    assert one.host_keys["allow_uncalibrated"] is False


def test_the_keys_that_asked_are_remembered(catalog: Catalog) -> None:
    [demand] = parse_request({"alpha": True, "feature_cache": "alpha"}, catalog).demands
    assert (demand.switch, demand.keys) == ("alpha", ("alpha", "feature_cache"))
    assert demand.names() == ("alpha", "feature_cache")
    assert demand.typed == ("alpha=true", "feature_cache=alpha")


def test_keys_that_only_set_options_do_not_ask_for_a_feature(catalog: Catalog) -> None:
    [demand] = parse_request({"vae_tiling": True, "vae_tile_size": [8, 8]}, catalog).demands
    assert demand.keys == ("vae_tiling",)
    assert dict(demand.option_keys) == {"tile_size": "vae_tile_size"}
    assert demand.names() == ("vae_tiling", "tiling")
    assert demand.names(options=("tile_size",)) == ("vae_tiling", "tiling", "vae_tile_size")


def test_one_value_that_two_features_answer_to(site: Site) -> None:
    site.family()
    site.cache("cache-a", feature="same")
    site.cache("cache-b", feature="same")
    catalog = Catalog.of(discover([str(site.folder)], {}))
    [problem] = parse_request({"feature_cache": "same"}, catalog).problems
    assert problem.code == "WF-P003"
    assert "same of cache-a, same of cache-b" in problem.reason
    [problem] = parse_request({"same": True}, catalog, "toy").problems
    assert "claimed by cache-a and cache-b" in problem.reason
    assert parse_request({"same": True}, catalog).problems == (), "which family is asked for, nobody knows"
    blocked = Catalog.of(discover([str(site.folder)], {"WF_BLOCK": "cache-a"}))
    assert [d.offer.plugin for d in parse_request({"feature_cache": "same"}, blocked).demands] == ["cache-b"]


def test_the_plugin_for_the_models_family_is_meant(site: Site) -> None:
    site.cache("cache-a", feature="same")
    site.cache("cache-b", feature="same")
    path = site.folder / "toyplug_cache_b" / "wf-plugin.toml"
    path.write_text(path.read_text().replace('families = ["toy"]', 'families = ["other"]'))
    catalog = Catalog.of(discover([str(site.folder)], {}))
    assert [d.offer.plugin for d in parse_request({"same": True}, catalog, "other").demands] == ["cache-b"]
    assert [d.offer.plugin for d in parse_request({"same": True}, catalog, "toy").demands] == ["cache-a"]


def test_an_alias_takes_no_other_plugins_key(site: Site) -> None:
    """Not even that of a feature which is only declared: the key would silently mean something else."""
    site.family()
    declared = VAE_MANIFEST.replace(
        'tier = "exact"', 'tier = "exact"\nstate = "unavailable: not implemented"'
    )
    site.plugin("vae-toy", declared)
    grabbing = VAE_MANIFEST.replace('"vae-toy"', '"vae-grab"').replace('name = "tiling"', 'name = "grab"')
    grabbing = grabbing.replace('feature = "tiling"', 'feature = "grab"').replace('"vae_tiling"', '"grab"')
    site.plugin("vae-grab", grabbing.replace('aliases = ["tiled"]', 'aliases = ["vae_tiling"]'))
    catalog = Catalog.of(discover([str(site.folder)], {}))
    assert demands(parse_request({"vae_tiling": True}, catalog, "toy")) == {"tiling": {}}
    assert demands(parse_request({"grab": True}, catalog, "toy")) == {"grab": {}}


def test_a_features_name_is_told_from_a_key(site: Site) -> None:
    site.family()
    named = VAE_MANIFEST.replace(
        'name = "tiling"\ntier', 'name = "tiling"\nexample = { vae_tiling = true }\ntier'
    )
    site.plugin("vae-toy", named)
    catalog = Catalog.of(discover([str(site.folder)], {}))
    [problem] = parse_request({"tiling": True}, catalog, "toy").problems
    assert (problem.code, problem.fix) == ("WF-R001", "Ask for it so: vae_tiling=true.")
    assert problem.repairs[0].applied({"tiling": True}) == {"vae_tiling": True}
