"""Plans as JSON: back to the same plan, and refused where they or the plugins have changed."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from typing import Any

import pytest

from wf_core.errors import BadInput, Refused
from wf_core.host import Host
from wf_core.resolving.plan import Plan
from wf_core.resolving.resolve import resolve
from wf_core.resolving.saved import plan_from_json

from .conftest import Site
from .test_resolve import DECLARED_ONLY, MODEL, PRESET_CONDITION, catalog, feature

DEGREE = '[[feature.option]]\nname = "degree"\ntype = "int"\ndefault = 2\nmin = 1\n'
REQUEST = {"alpha": 0.5, "spread": True, "static": True, "later": True, "on_ineligible": "dense"}


def write(site: Site) -> None:
    """Plugins whose plan has whatever a plan can have: options, effects, tables, warnings, what is only declared."""
    site.cache("cache-alpha", more=PRESET_CONDITION)
    spread = f'effects = ["occupies-ranks(degree)"]\nbefore = ["alpha"]\n{DEGREE}'
    site.plugin("spread", feature("spread", spread, "parallel-strategy"))
    site.plugin("static", feature("static", 'effects = ["rank-uniform-decision"]\nafter = ["alpha"]'))
    site.plugin("later", feature("later", DECLARED_ONLY))
    site.family()


@pytest.fixture
def plan(site: Site) -> Plan:
    write(site)
    facts = MODEL.with_({"process.world": 2})
    return resolve(REQUEST, facts, catalog(site), run={"height": 32})


def host(site: Site) -> Host:
    return Host.discover([str(site.folder)])


def through_json(plan: Plan) -> dict[str, Any]:
    return dict(json.loads(json.dumps(plan.to_json())))


def test_a_plan_comes_back_as_it_was(plan: Plan, site: Site) -> None:
    assert plan.warnings and plan.not_activatable and plan.pending == ()
    assert any(planned.pending for planned in plan.features)
    saved = through_json(plan)
    again = plan_from_json(saved)
    assert again == plan
    assert (again.hash, hash(again), again.to_json()) == (plan.hash, hash(plan), plan.to_json())
    assert again.explain() == plan.explain()
    assert host(site).load_plan(saved) == plan


def test_the_whole_answer_of_wf_resolve_is_a_plan_too(plan: Plan) -> None:
    assert plan_from_json({"schema": 1, "legal": True, "plan": through_json(plan), "unknown": []}) == plan


# --- what is no plan --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "data",
    [
        None, [], "plan", {}, {"schema": 1}, {"schema": 2, "features": []}, {"schema": 1, "legal": False},
        {"schema": 1, "legal": True, "plan": None}, {"schema": 1, "features": []}, {"schema": 1, "features": 3},
    ],
    ids=str,
)  # fmt: skip
def test_what_is_no_plan(data: Any) -> None:
    with pytest.raises(BadInput, match=r"^not a (complete )?plan"):
        plan_from_json(data)


@pytest.mark.parametrize("key", sorted(Plan().to_json()))
def test_a_plan_with_a_key_missing(plan: Plan, key: str) -> None:
    saved = through_json(plan)
    del saved[key]
    if key in ("unknown", "pending"):  # for readers; they follow from the rest
        assert plan_from_json(saved) == plan
        return
    with pytest.raises(BadInput, match=r"^not a |the hash None"):
        plan_from_json(saved)


@pytest.mark.parametrize("value", [None, 3, "x", [3], {"a": 3}], ids=str)
@pytest.mark.parametrize("key", ["features", "host_keys", "warnings", "facts", "versions", "conditions"])
def test_a_plan_with_a_value_of_another_kind(plan: Plan, site: Site, key: str, value: Any) -> None:
    saved = through_json(plan) | {key: value}
    with pytest.raises((BadInput, Refused)) as caught:
        host(site).load_plan(saved)
    assert "\n" not in str(caught.value)


Tamper = Callable[[dict[str, Any]], None]


def feature_of(saved: dict[str, Any], name: str) -> dict[str, Any]:
    return next(item for item in saved["features"] if item["name"] == name)


@pytest.mark.parametrize(
    "tamper",
    [
        lambda saved: feature_of(saved, "alpha")["options"].update(threshold=0.6),
        lambda saved: saved["features"].pop(),
        lambda saved: saved["features"].reverse(),
        lambda saved: saved["host_keys"].update(on_ineligible="error"),
        lambda saved: saved.update(family="other"),
        lambda saved: saved.update(hash="0" * 16),
    ],
    ids=["option", "feature gone", "order", "host key", "family", "hash"],
)
def test_another_hash_than_the_contents_have(plan: Plan, tamper: Tamper) -> None:
    saved = through_json(plan)
    tamper(saved)
    with pytest.raises(BadInput, match=r"contents have .*: it was changed"):
        plan_from_json(saved)


def rehashed(plan: Plan, tamper: Tamper) -> dict[str, Any]:
    """A changed plan with the hash that its contents have."""
    saved = copy.deepcopy(through_json(plan))
    tamper(saved)
    try:
        plan_from_json(saved)
    except BadInput as error:
        saved["hash"] = str(error).partition("contents have ")[2].partition(":")[0]
    plan_from_json(saved)
    return saved


@pytest.mark.parametrize(
    ("tamper", "words"),
    [
        (
            lambda saved: feature_of(saved, "alpha")["conditions"].pop(0),
            "does not check a condition of alpha: no preset for",
        ),
        (
            lambda saved: feature_of(saved, "alpha")["conditions"][1]["tests"][0][1].update(value=1),
            "does not check a condition of alpha: needs at least 4 steps",
        ),
        (lambda saved: feature_of(saved, "alpha")["options"].update(threshold=7.0), "7.0 is out of range"),
        (lambda saved: feature_of(saved, "alpha")["options"].update(threshold=None), None),
        (
            lambda saved: feature_of(saved, "alpha")["options"].pop("coefficients"),
            "options of alpha are not those that cache-alpha declares",
        ),
        (
            lambda saved: feature_of(saved, "alpha")["options"].update(more=1),
            "options of alpha are not those that cache-alpha declares",
        ),
        (lambda saved: feature_of(saved, "alpha").update(tier="exact"), "tier of alpha is not what"),
        (lambda saved: feature_of(saved, "alpha").update(slot=""), "slot of alpha is not what"),
        (lambda saved: feature_of(saved, "alpha").update(seams=["block"]), "seams of alpha is not what"),
        (lambda saved: feature_of(saved, "alpha").update(evidence=["computed >= 1"]), "evidence of alpha"),
        (lambda saved: feature_of(saved, "alpha").update(name="beta"), "has no feature beta"),
        (lambda saved: feature_of(saved, "alpha").update(plugin="cache-b"), "which version of cache-b"),
        (lambda saved: saved["versions"].pop("cache-alpha"), "does not say which version of cache-alpha"),
        (
            lambda saved: saved["versions"].update({"cache-alpha": "0.9"}),
            "made with cache-alpha 0.9, installed is 1.0",
        ),
        (
            lambda saved: saved["versions"].update({"cache-b": "1.0"}),
            "needs the plugin cache-b 1.0, which is not",
        ),
    ],
)
def test_another_plan_than_the_plugins_declare(
    plan: Plan, site: Site, tamper: Tamper, words: str | None
) -> None:
    saved = rehashed(plan, tamper)
    if words is None:
        assert host(site).load_plan(saved).features
        return
    with pytest.raises((Refused, BadInput)) as caught:
        host(site).load_plan(saved)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    if isinstance(caught.value, Refused):
        assert {violation.code for violation in caught.value.refusal.violations} == {"WF-F004"}


def test_a_plugin_that_is_gone(plan: Plan, site: Site) -> None:
    for path in site.folder.glob("*alpha*.dist-info/*"):
        path.unlink()
    with pytest.raises(
        Refused, match=r"WF-F004 the plan needs the plugin cache-alpha 1.0, which is not installed"
    ):
        host(site).load_plan(through_json(plan))


def test_a_plugin_that_is_blocked(plan: Plan, site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WF_BLOCK", "cache-alpha")
    with pytest.raises(Refused, match=r"WF-F004 .* or cannot be used"):
        host(site).load_plan(through_json(plan))


def test_a_plugin_that_declares_another_condition_by_now(plan: Plan, site: Site) -> None:
    path = site.folder / "toyplug_cache_alpha" / "wf-plugin.toml"
    path.write_text(path.read_text().replace("ge = 4", "ge = 5"))
    with pytest.raises(
        Refused, match=r"WF-F004 .* does not check a condition of alpha: needs at least 4 steps"
    ):
        host(site).load_plan(through_json(plan))


def test_every_change_is_told(plan: Plan, site: Site) -> None:
    def tamper(saved: dict[str, Any]) -> None:
        saved["versions"].update({"cache-alpha": "0.9"})
        feature_of(saved, "spread").update(kind="fusion")

    with pytest.raises(Refused) as refused:
        host(site).load_plan(rehashed(plan, tamper))
    involved = [violation.involves for violation in refused.value.refusal.violations]
    assert involved == [("cache-alpha",), ("spread",)]
