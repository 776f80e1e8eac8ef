"""Discovery: every state with its reason, without importing a plugin. Named faults are from public reports."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from wf_core.errors import BadInput
from wf_core.plugins.discovery import Discovery, discover

from .conftest import CACHE_MANIFEST, FAMILY_MANIFEST, Site

RAISES = "raise RuntimeError('must not be imported')\n"


def found(site: Site, *more: Site, **environ: str) -> Discovery:
    return discover([str(s.folder) for s in (site, *more)], environ)


def states(discovery: Discovery) -> dict[str, str]:
    return {record.name: record.state for record in discovery.plugins}


def test_an_available_plugin(site: Site) -> None:
    module = site.cache("cache-one", RAISES, version="2.3")
    [record] = found(site).plugins
    assert (record.name, record.state, record.reason) == ("cache-one", "available", "")
    assert (record.distribution, record.version, record.api) == ("wf-plugin-cache-one", "2.3", 1)
    assert (record.kind, record.module) == ("feature-cache", module)
    assert record.location == str(site.folder / module)
    assert [(f.feature.name, f.state) for f in record.features()] == [("one", "available")]
    assert module not in sys.modules


def test_distributions_without_the_group_are_no_plugins(site: Site) -> None:
    site.metadata("numpy", "")
    assert found(site).plugins == ()


# --- broken ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "words"),
    [
        ("bad =", "names no module"),
        ("bad", "names no module"),
        ("bad = toyplug_gone", "no module 'toyplug_gone'"),
        ("bad = toyplug_there.gone", "no module 'toyplug_there.gone'"),
        ("bad = toyplug_there", "no wf-plugin.toml beside toyplug_there"),
        (
            "one = toyplug_there\ntwo = toyplug_there",
            "exactly one entry point in wf.plugins, this one has one, two",
        ),
        ("# nothing", "this one has none"),
    ],
)
def test_a_broken_entry_has_a_one_line_cause(site: Site, entries: str, words: str) -> None:
    site.module("toyplug_there")
    site.metadata("bad", entries)
    [record] = found(site).plugins
    assert record.state == "broken"
    assert words in record.reason
    assert "\n" not in record.reason
    assert record.features() == ()


def test_a_manifest_that_is_not_valid(site: Site) -> None:
    site.plugin("cache-bad", "schema = 1\napi = 1\nname = ")
    [record] = found(site).plugins
    assert record.state == "broken"
    assert "not valid TOML" in record.reason


def test_a_manifest_of_another_name(site: Site) -> None:
    site.module("toyplug_x", "", CACHE_MANIFEST.format(name="y", api=1, feature="f", switch="f", more=""))
    site.metadata("x", "x = toyplug_x")
    [record] = found(site).plugins
    assert record.state == "broken"
    assert "'y'" in record.reason
    assert "'x'" in record.reason


def test_a_newer_api_is_incompatible_and_both_numbers_are_named(site: Site) -> None:
    site.cache("cache-new", RAISES, api=7)
    [record] = found(site).plugins
    assert record.state == "incompatible"
    assert "API 7" in record.reason
    assert "offers 1" in record.reason


def test_a_missing_package_makes_a_plugin_unavailable(site: Site) -> None:
    site.cache("cache-a", more='[packages]\nno-such-package = "*"')
    site.metadata("there", "", version="1.5", name="there")
    site.cache("cache-b", more='[packages]\nthere = ">=2"')
    site.cache("cache-c", more='[packages]\nthere = ">=1"')
    discovery = found(site)
    assert states(discovery) == {"cache-a": "unavailable", "cache-b": "unavailable", "cache-c": "available"}
    assert discovery.plugins[0].reason == "needs the package no-such-package, which is not installed"
    assert discovery.plugins[1].reason == "needs there >=2, 1.5 is installed"


def test_a_feature_that_is_only_declared(site: Site) -> None:
    text = CACHE_MANIFEST.format(name="cache-a", api=1, feature="a", switch="a", more="")
    site.plugin(
        "cache-a", text.replace('tier = "approx', 'state = "unavailable: not implemented"\ntier = "approx')
    )
    [record] = found(site).plugins
    [feature] = record.features()
    assert record.state == "available"
    assert (feature.state, feature.reason) == ("unavailable", "not implemented")


# --- B65: one project seen more than once --------------------------------------------------------------------------


def test_b65_a_stale_egg_info_is_a_note_and_not_a_second_plugin(site: Site, other_site: Site) -> None:
    module = site.cache("cache-one")
    stale = other_site.metadata("wf-plugin-cache-one", f"cache-one = {module}", "0.1", kind="egg-info")
    for order in ((site, other_site), (other_site, site)):
        [record] = found(*order).plugins
        assert (record.state, record.version) == ("available", "1.0")
        assert record.location == str(site.folder / module)
        assert record.notes == (f"metadata also found at {stale} (version 0.1), not used",)


def test_b65_the_same_folder_twice_on_the_path(site: Site) -> None:
    site.cache("cache-one")
    [record] = found(site, site).plugins
    assert record.state == "available"
    assert record.notes == (f"{site.folder} is on the path more than once",)


def test_b65_two_copies_use_the_first_on_the_path(site: Site, other_site: Site) -> None:
    module = site.cache("cache-one")
    other_site.cache("cache-one", version="3.0")
    [record] = found(other_site, site).plugins
    assert record.location == str(other_site.folder / module)
    assert record.version == "3.0"
    assert len(record.notes) == 1


def test_b65_left_over_metadata_without_a_name_is_ignored(site: Site) -> None:
    site.cache("cache-one")
    (site.folder / "gone-1.0.dist-info").mkdir()
    nameless = site.metadata("nameless", "x = toyplug_x", name="")
    assert nameless.is_dir()
    assert states(found(site)) == {"cache-one": "available"}


# --- metadata of any other distribution -----------------------------------------------------------------------------


def test_a_distribution_that_cannot_be_read_does_not_end_the_listing(site: Site) -> None:
    site.cache("cache-one")
    stranger = site.metadata("stranger", "")
    (stranger / "entry_points.txt").write_bytes(b"[console_scripts]\n\xff\xfe = a:b\n")
    (site.metadata("folder", "") / "entry_points.txt").mkdir()
    (site.metadata("unread", "") / "METADATA").write_bytes(b"Name: \xff\n")
    assert states(found(site)) == {"cache-one": "available"}


def test_a_plugin_whose_metadata_is_garbled_is_broken(site: Site) -> None:
    site.cache("cache-one")
    entries = site.metadata("wf-plugin-cache-two", "cache-two = toyplug_cache_one") / "entry_points.txt"
    entries.write_bytes(entries.read_bytes() + b"[other]\n\xff = a\n")
    fields = site.metadata("wf_plugin_cache_three", "cache-three = toyplug_cache_one", "2.0") / "METADATA"
    fields.write_bytes(b"Name: \xff\n")
    assert states(found(site)) == {"cache-one": "available", "cache-two": "broken", "cache-three": "broken"}
    reasons = {record.name: record.reason for record in found(site).plugins}
    assert "entry_points.txt is not UTF-8" in reasons["cache-two"]
    assert "cannot be read" in reasons["cache-three"]
    three = found(site).plugin("cache-three")
    assert three is not None
    assert (three.distribution, three.version) == ("wf_plugin_cache_three", "2.0")


def test_a_required_package_with_garbled_metadata_is_not_there(site: Site) -> None:
    (site.metadata("there", "", version="1.5") / "METADATA").write_bytes(b"Version: \xff\n")
    site.metadata("odd", "", version="not-a-version")
    site.cache("cache-a", more='[packages]\nthere = "*"')
    site.cache("cache-b", more='[packages]\nodd = ">=1"')
    assert states(found(site)) == {"cache-a": "unavailable", "cache-b": "unavailable"}


def test_any_fault_of_reading_a_manifest_is_the_plugins(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(path: Path) -> None:
        raise ZeroDivisionError("oh\nno")

    site.cache("cache-one")
    monkeypatch.setattr("wf_core.plugins.discovery.Manifest.load", fail)
    [record] = found(site).plugins
    assert record.state == "broken"
    assert record.reason.endswith("wf-plugin.toml: ZeroDivisionError: oh no")


# --- ambiguous -----------------------------------------------------------------------------------------------------


def two_claims(site: Site) -> None:
    site.cache("cache-one", distribution="vendor-a")
    site.metadata("vendor-b", "cache_one = toyplug_cache_one")


def test_two_distributions_of_one_name_are_both_ambiguous(site: Site) -> None:
    two_claims(site)
    first, second = found(site).plugins
    assert (first.state, second.state) == ("ambiguous", "ambiguous")
    assert (first.distribution, second.distribution) == ("vendor-a", "vendor-b")
    assert "WF_BLOCK=dist:vendor-a or WF_BLOCK=dist:vendor-b" in first.reason


def test_blocking_one_claim_frees_the_other(site: Site) -> None:
    two_claims(site)
    first, second = found(site, WF_BLOCK="dist:Vendor_B").plugins
    assert (first.state, second.state) == ("available", "blocked")
    first, second = found(site, WF_ONLY="dist:vendor-b").plugins
    assert (first.state, second.state) == ("blocked", "available")


# --- B69, B71, B73: blocking ---------------------------------------------------------------------------------------


def test_b69_a_blocked_plugin_is_not_imported_and_its_features_say_so(site: Site) -> None:
    module = site.cache("cache-one", RAISES)
    [record] = found(site, WF_BLOCK="cache-one").plugins
    assert (record.state, record.reason) == ("blocked", "WF_BLOCK names cache-one")
    assert [(f.state, f.reason) for f in record.features()] == [("blocked", "WF_BLOCK names cache-one")]
    assert module not in sys.modules


def test_b69_only_blocks_all_others(site: Site) -> None:
    for name in ("cache-a", "cache-b", "cache-c"):
        site.cache(name)
    discovery = found(site, WF_ONLY="cache-b")
    assert states(discovery) == {"cache-a": "blocked", "cache-b": "available", "cache-c": "blocked"}
    assert discovery.plugins[0].reason == "WF_ONLY is set and does not name it"


@pytest.mark.parametrize("spelling", ["wf-my-cache", "WF_My.Cache", "wf.my.cache", "Wf__My-_Cache"])
@pytest.mark.parametrize("prefix", ["", "dist:"])
def test_b71_every_spelling_of_a_name_is_the_same_name(site: Site, spelling: str, prefix: str) -> None:
    text = CACHE_MANIFEST.format(name="WF_My.Cache", api=1, feature="f", switch="f", more="")
    site.module("toyplug_my", "", text)
    site.metadata("WF_My.Cache", "WF_My.Cache = toyplug_my")
    assert states(found(site)) == {"wf-my-cache": "available"}
    assert states(found(site, WF_BLOCK=prefix + spelling)) == {"wf-my-cache": "blocked"}
    assert states(found(site, WF_ONLY=prefix + spelling)) == {"wf-my-cache": "available"}
    assert found(site).plugin(spelling) is not None


def test_b71_two_spellings_of_one_distribution_name_are_a_conflict(site: Site, other_site: Site) -> None:
    site.cache("cache-one", distribution="WF_My.Cache")
    other_site.metadata("wf-my-cache", "cache-one = toyplug_cache_one")
    first, second = found(site, other_site).plugins
    assert (first.state, second.state) == ("ambiguous", "ambiguous")
    assert "uninstall one" in first.reason


def test_b73_the_word_that_the_listing_shows_blocks_that_line_and_no_other(site: Site) -> None:
    site.cache("cache-good")
    site.cache("cache-new", api=3)
    site.cache("cache-lacking", more='[packages]\nno-such-package = "*"')
    site.metadata("broken-dist", "a = b\nc = d")
    site.metadata("gone", "gone = toyplug_gone")
    two_claims(site)
    before = found(site).plugins
    assert len(before) == 7
    for line in before:
        after = found(site, WF_BLOCK=line.block_with).plugins
        blocked = [(r.name, r.distribution) for r in after if r.state == "blocked"]
        assert blocked == [(line.name, line.distribution)]


@pytest.mark.parametrize("variable", ["WF_BLOCK", "WF_ONLY"])
def test_b73_an_unknown_name_is_an_error_with_near_matches(site: Site, variable: str) -> None:
    site.cache("cache-teacup")
    with pytest.raises(BadInput, match=f"{variable} names 'cache-teacap'.*did you mean cache-teacup"):
        found(site, **{variable: "cache-teacap"})
    with pytest.raises(BadInput, match="dist:wf-plugin-cache-teacup"):
        found(site, **{variable: "dist:wf-plugin-cache-teacap"})
    tolerant = discover([str(site.folder)], {variable: "cache-teacap"}, tolerant=True)
    assert "did you mean cache-teacup" in tolerant.problems[0]
    assert [record.state for record in tolerant.plugins] == [
        "available" if variable == "WF_BLOCK" else "blocked"
    ]


def test_several_names_with_commas_and_spaces(site: Site) -> None:
    for name in ("cache-a", "cache-b", "cache-c"):
        site.cache(name)
    assert states(found(site, WF_BLOCK=" cache-a,, cache-c ")) == {
        "cache-a": "blocked",
        "cache-b": "available",
        "cache-c": "blocked",
    }


def test_strict_names_broken_and_ambiguous_plugins(site: Site) -> None:
    two_claims(site)
    site.metadata("gone", "gone = toyplug_gone")
    site.cache("cache-new", api=3)
    assert found(site).strict_faults() == ()
    assert found(site, WF_STRICT="0").strict_faults() == ()
    strict = found(site, WF_STRICT="1")
    assert [record.name for record in strict.strict_faults()] == ["cache-one", "cache-one", "gone"]
    with pytest.raises(BadInput, match=r"^WF_STRICT: cache-one is ambiguous: .*; gone is broken: "):
        strict.require_sound()
    assert found(site).require_sound() == found(site)


def test_a_family_is_found_with_its_manifest(site: Site) -> None:
    site.plugin("toy", FAMILY_MANIFEST)
    [manifest] = found(site).manifests()
    assert manifest.family is not None
    assert manifest.path == Path(site.folder / "toyplug_toy" / "wf-plugin.toml")
