"""What manifests must agree on: codes, words for effects, before and after; broken, with the way out in the reason."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from wf_core import data
from wf_core.manifests.manifest import Manifest
from wf_core.plugins.consistency import faults_together, own_fault
from wf_core.plugins.discovery import Discovery, discover

from .conftest import FAMILY_MANIFEST, Site

EFFECT = '[[effect]]\nname = "{word}"\ndoc = "It melts."\nnumbers = {numbers}\n'
RULE = (
    '[[rule]]\ncode = "{code}"\nlevel = "forbid"\npair = ["melts", "captures-graph"]\nreason = "It drips."\n'
)
CONDITION = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "This is {{value}}."\n'


def found(site: Site, **environ: str) -> Discovery:
    return discover([str(site.folder)], environ)


def states(discovery: Discovery) -> dict[str, str]:
    return {record.name: record.state for record in discovery.plugins}


def reasons(discovery: Discovery) -> dict[str, str]:
    return {record.name: record.reason for record in discovery.plugins if record.reason}


def cache(
    site: Site, name: str, *, order: str = "", top: str = "", code: str = "", feature: str = ""
) -> None:
    """A cache whose feature has lines of its own (``order``), a condition with a code, and tables at the top."""
    condition = CONDITION.format() + f'code = "{code}"\n' if code else ""
    module = site.cache(name, more=condition, feature=feature)
    manifest = site.folder / module / "wf-plugin.toml"
    text = manifest.read_text().replace('slot = "feature-cache"', f'slot = "feature-cache"\n{order}')
    manifest.write_text(text + top)


# --- before and after --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("order", "spelled"),
    [
        ('before = ["x"]\nafter = ["x"]', "a before x before a (before of a, after of a)"),
        ('after = ["a"]', "a before a (after of a)"),
    ],
)
def test_a_cycle_within_one_manifest(site: Site, order: str, spelled: str) -> None:
    cache(site, "cache-a", order=order)
    site.cache("cache-x")
    discovery = found(site)
    assert states(discovery) == {"cache-a": "broken", "cache-x": "available"}
    reason = reasons(discovery)["cache-a"]
    assert spelled in reason
    assert "take one of these out" in reason
    assert "wf-plugin.toml: " in reason


def test_a_cycle_across_plugins_breaks_those_that_say_it_until_one_is_blocked(site: Site) -> None:
    cache(site, "cache-a", order='before = ["b"]')
    cache(site, "cache-b", order='before = ["c"]')
    cache(site, "cache-c", order='before = ["a", "bystander"]\nafter = ["nobody"]')
    site.cache("cache-bystander")
    discovery = found(site)
    assert states(discovery) == {
        "cache-a": "broken", "cache-b": "broken", "cache-bystander": "available", "cache-c": "broken",
    }  # fmt: skip
    reason = reasons(discovery)["cache-b"]
    assert "b before c before a before b" in reason
    assert "before of b of cache-b, before of c of cache-c, before of a of cache-a" in reason
    ways_out = [word for word in reason.split() if word.startswith("WF_BLOCK=")]
    assert ways_out == ["WF_BLOCK=cache-a", "WF_BLOCK=cache-b", "WF_BLOCK=cache-c"]
    for way_out in ways_out:
        name = way_out.removeprefix("WF_BLOCK=")
        after = states(found(site, WF_BLOCK=name))
        assert after.pop(name) == "blocked"
        assert set(after.values()) == {"available"}


def test_before_of_one_and_after_of_another_make_a_cycle_too(site: Site) -> None:
    cache(site, "cache-a", order='before = ["b"]\nafter = ["b2"]')
    cache(site, "cache-b", order='before = ["a"]')
    discovery = found(site)
    assert states(discovery) == {"cache-a": "broken", "cache-b": "broken"}
    assert (
        "a before b before a (before of a of cache-a, before of b of cache-b)"
        in reasons(discovery)["cache-a"]
    )


def test_a_third_plugin_that_is_only_named_is_not_broken(site: Site) -> None:
    """a before x, x before b, b before a: x says nothing."""
    cache(site, "cache-a", order='before = ["x"]')
    cache(site, "cache-b", order='after = ["x"]\nbefore = ["a"]')
    site.cache("cache-x")
    assert states(found(site)) == {"cache-a": "broken", "cache-b": "broken", "cache-x": "available"}


def test_an_order_without_a_cycle_is_fine_however_many_ways_there_are(site: Site) -> None:
    cache(site, "cache-a", order='before = ["b", "c", "d"]')
    cache(site, "cache-b", order='before = ["d"]')
    cache(site, "cache-c", order='before = ["d"]\nafter = ["b"]')
    cache(site, "cache-d", order='after = ["a"]')
    assert set(states(found(site)).values()) == {"available"}


# --- codes -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("table", ["rule", "code"])
def test_a_code_of_the_host(site: Site, table: str) -> None:
    code = data.table(f"{table}s")[table][0]["code"]
    cache(site, "cache-a", code=code)
    cache(site, "cache-b", top=EFFECT.format(word="melts", numbers=0) + RULE.format(code=code))
    discovery = found(site)
    assert set(states(discovery).values()) == {"broken"}
    told = reasons(discovery)
    assert f"condition number 1 of feature 'a': {code} is a code of the host" in told["cache-a"]
    assert f"rule {code}: {code} is a code of the host" in told["cache-b"]
    assert "such as CACHE-A-1" in told["cache-a"]


def test_a_code_of_the_host_in_a_condition_of_a_family(site: Site) -> None:
    condition = '[[family.condition]]\nfact = "model.heads"\neq = 1\nreason = "r"\ncode = "WF-M005"\n'
    site.plugin("toy", FAMILY_MANIFEST + condition)
    assert "condition number 1 of the family: WF-M005 is a code of the host" in reasons(found(site))["toy"]


def test_two_plugins_with_one_code_are_broken_until_one_is_blocked(site: Site) -> None:
    cache(site, "cache-a", code="X-1")
    cache(site, "cache-b", top=EFFECT.format(word="melts", numbers=0) + RULE.format(code="X-1"))
    cache(site, "cache-c", code="X-2")
    discovery = found(site)
    assert states(discovery) == {"cache-a": "broken", "cache-b": "broken", "cache-c": "available"}
    for name, rival in (("cache-a", "cache-b"), ("cache-b", "cache-a")):
        reason = reasons(discovery)[name]
        assert f"{rival} has the same code X-1" in reason
        assert "WF_BLOCK=cache-a or WF_BLOCK=cache-b" in reason
        assert states(found(site, WF_BLOCK=rival))[name] == "available"
    assert states(found(site, WF_ONLY="cache-a"))["cache-a"] == "available"


def test_conditions_of_one_manifest_may_share_a_code_but_not_with_its_rules(site: Site) -> None:
    twice = CONDITION.format() + 'code = "X-1"\n'
    site.cache("cache-a", more=twice + twice)
    rule = EFFECT.format(word="melts", numbers=0) + RULE.format(code="Y-1")
    cache(site, "cache-b", code="Y-1", top=rule)
    discovery = found(site)
    assert states(discovery) == {"cache-a": "available", "cache-b": "broken"}
    told = "rule Y-1: condition number 1 of feature 'b' has the same code"
    assert told in reasons(discovery)["cache-b"]


# --- words for effects -------------------------------------------------------------------------------------------


def test_two_plugins_may_introduce_one_word_only_with_the_same_numbers(site: Site) -> None:
    cache(site, "cache-a", top=EFFECT.format(word="melts", numbers=1))
    cache(site, "cache-b", top=EFFECT.format(word="melts", numbers=2))
    discovery = found(site)
    assert states(discovery) == {"cache-a": "broken", "cache-b": "broken"}
    assert "effect 'melts' has numbers = 1, and 2 in cache-b: agree on one" in reasons(discovery)["cache-a"]
    assert "WF_BLOCK=cache-a or WF_BLOCK=cache-b" in reasons(discovery)["cache-b"]
    cache(site, "cache-c", top=EFFECT.format(word="melts", numbers=1))
    assert states(found(site, WF_BLOCK="cache-b")) == {
        "cache-a": "available", "cache-b": "blocked", "cache-c": "available",
    }  # fmt: skip


# --- who takes part ----------------------------------------------------------------------------------------------


def test_what_cannot_be_used_takes_no_part(site: Site) -> None:
    cache(site, "cache-a", code="X-1")
    cache(site, "cache-lacking", code="X-1", top='[packages]\nno-such-package = "*"\n')
    site.cache("cache-new", api=9)
    cache(site, "cache-twice", code="X-1")
    site.metadata("vendor", "cache-twice = toyplug_cache_twice")
    assert states(found(site)) == {
        "cache-a": "available", "cache-lacking": "unavailable", "cache-new": "incompatible",
        "cache-twice": "ambiguous",
    }  # fmt: skip


def test_a_manifest_that_is_wrong_in_itself_takes_no_part_either(site: Site) -> None:
    cache(site, "cache-a", code="X-1")
    cache(site, "cache-b", code="X-1", order='before = ["b"]')
    assert states(found(site)) == {"cache-a": "available", "cache-b": "broken"}


def test_a_blocked_plugin_is_not_judged(site: Site) -> None:
    cache(site, "cache-b", code="WF-F001", order='before = ["b"]')
    assert states(found(site, WF_BLOCK="cache-b")) == {"cache-b": "blocked"}


def test_a_strict_host_refuses_a_contradiction(site: Site) -> None:
    cache(site, "cache-a", code="X-1")
    cache(site, "cache-b", code="X-1")
    names = [record.name for record in found(site, WF_STRICT="1").strict_faults()]
    assert names == ["cache-a", "cache-b"]


def test_the_reasons_do_not_depend_on_the_order_in_which_plugins_are_found(site: Site) -> None:
    cache(site, "cache-a", order='before = ["b"]', code="X-1", top=EFFECT.format(word="melts", numbers=1))
    cache(site, "cache-b", order='before = ["a"]', code="X-1", top=EFFECT.format(word="melts", numbers=2))
    cache(site, "cache-c", order='before = ["b"]\nafter = ["a"]', code="X-1")
    manifests = {
        path.parent.name: Manifest.load(path) for path in sorted(site.folder.rglob("wf-plugin.toml"))
    }
    assert len(manifests) == 3
    first = faults_together(manifests)
    for some in itertools.permutations(manifests.items()):
        assert faults_together(dict(some)) == first
    assert all("\n" not in reason for reason in first.values())
    assert first["toyplug_cache_a"].count("; ") >= 2, "every contradiction is told, not only the first"


def test_long_orders_are_judged_quickly(tmp_path: Path) -> None:
    rows = [
        f'[[feature]]\nname = "f{n}"\ntier = "exact"\nevidence = [{{ counter = "c" }}]\nbefore = ["f{n + 1}"]\n'
        for n in range(300)
    ]
    path = tmp_path / "wf-plugin.toml"
    head = 'schema = 1\nname = "p"\napi = 1\nkind = "fusion"\n'
    path.write_text(head + "".join(rows))
    assert own_fault(Manifest.load(path)) == ""
    path.write_text(head + "".join(rows).replace('"f300"', '"f0"'))
    assert "f0 before f1 before f2" in own_fault(Manifest.load(path))


# --- request keys ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("key", "hint"), [("feature_cache", "answer to it with select"), ("goal", "rename it")]
)
def test_a_switch_is_not_called_like_a_key_of_the_host(site: Site, key: str, hint: str) -> None:
    module = site.cache("cache-a")
    manifest = site.folder / module / "wf-plugin.toml"
    manifest.write_text(
        manifest.read_text().replace('\nname = "a"\nfeature = "a"', f'\nname = "{key}"\nfeature = "a"')
    )
    reason = reasons(found(site))["cache-a"]
    assert f"{key} is a request key of the host; {hint}" in reason
