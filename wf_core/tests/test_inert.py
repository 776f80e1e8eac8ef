"""What a manifest says of runs in which a feature does nothing: a warning in the plan, and no refusal."""

from __future__ import annotations

import json
from typing import Any

import attrs
import pytest

from wf_core.cli.report_table import print_report
from wf_core.facts.run import run_facts, with_derived
from wf_core.manifests.manifest import ManifestError
from wf_core.plugins.consistency import own_fault
from wf_core.resolving.plan import Plan
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_manifest import FEATURE, HEAD, OPTION, load
from .test_resolve import MODEL, catalog, feature
from .toy_features import runner

SHORT = """
goals = ["fast"]
example = { skip = true }
[[feature.option]]
name = "first"
type = "int"
default = 2
[[feature.option]]
name = "last"
type = "int"
[[feature.inert]]
code = "TOY-7"
any_of = [
    { fact = "run.num_inference_steps", le = { sum = [{ option = "first" }, { option = "last" }] } },
    { fact = "run.num_inference_steps", le = { option = "first" } },
]
reason = "all {value} steps are computed."
"""


def plan(site: Site, request: dict[str, Any], steps: int | None = None, **more: Any) -> Plan:
    if not (site.folder / "toyplug_skip").exists():
        site.plugin("skip", feature("skip", SHORT))
    return resolve(request, MODEL, more.get("catalog") or catalog(site), run={"num_inference_steps": steps})


@pytest.mark.parametrize(
    ("request_", "steps", "warned"),
    [
        ({"skip": True}, 2, True),
        ({"skip": True}, 3, False),
        ({"skip": {"last": 1}}, 3, True),
        ({"skip": {"last": 1}}, 4, False),
        ({"skip": {"first": 0}}, 1, False),
        ({"skip": True}, None, False),
        ({}, 2, False),
    ],
)
def test_a_plan_says_that_a_feature_would_do_nothing(
    site: Site, request_: dict[str, Any], steps: int | None, warned: bool
) -> None:
    found = plan(site, request_, steps)
    assert [(w.code, w.level, w.reason) for w in found.warnings] == (
        [("TOY-7", "inert", f"all {steps} steps are computed.")] if warned else []
    )
    assert ("warning: TOY-7 all" in found.explain()) == warned
    assert json.loads(json.dumps(found.to_json()))["warnings"] == [w.to_json() for w in found.warnings]


def test_the_warning_names_the_keys_and_the_plan_the_facts(site: Site) -> None:
    found = plan(site, {"skip": {"last": 1}}, 3)
    assert found.warnings[0].involves == ("skip", "first", "last")
    assert ("run.num_inference_steps", 3, "run") in found.facts_used
    assert found.pending == () and not found.unknown(), "nothing waits for it"
    assert found.hash == plan(site, {"skip": {"last": 1}}, 30).hash, "what runs is the same"


def test_strictness_does_not_refuse_it(site: Site) -> None:
    plan(site, {"skip": True})
    strict = attrs.evolve(catalog(site), strict=True)
    assert [w.level for w in plan(site, {"skip": True}, 2, catalog=strict).warnings] == ["inert"]


def test_a_goal_does_not_choose_what_would_do_nothing(site: Site) -> None:
    assert plan(site, {"goal": "fast"}, 3).chosen == ("skip",)
    found = plan(site, {"goal": "fast"}, 2)
    assert (found.chosen, found.warnings) == ((), ())
    assert found.not_chosen[0].reasons == ("TOY-7 all 2 steps are computed.",)


def test_the_most_timesteps_are_known_where_the_scheduler_is() -> None:
    for scheduler, known in (
        ("", True),
        ("FlowMatchEulerDiscreteScheduler", True),
        ("SomeHeunScheduler", False),
    ):
        facts = run_facts({"num_inference_steps": 7}).with_({"model.scheduler": scheduler}, source="test")
        assert with_derived(facts).get("run.solver_steps") == (7 if known else None)
    assert "run.solver_steps" not in with_derived(run_facts({}))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[feature.inert]\nfact = 'a'\n", "inert must be an array of tables, \\[\\[feature.inert\\]\\]"),
        ("[[feature.inert]]\nfact = 'a'\neq = 1\n", "inert number 1: a condition needs a reason"),
        (
            "[[feature.inert]]\noption = 'nothing'\neq = 1\nreason = 'r'\n",
            "inert number 1 looks at an option 'nothing' that is not declared",
        ),
        (
            OPTION.replace("int", "str")
            + "[[feature.inert]]\nsum = [{ option = 'o' }, 1]\neq = 1\nreason = 'r'\n",
            "inert number 1 adds the option 'o', which is no number",
        ),
    ],
)
def test_what_is_written_wrongly_is_told(tmp_path: Any, text: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        load(tmp_path, HEAD + FEATURE + text)


def test_its_code_is_the_plugins_own(tmp_path: Any) -> None:
    text = "[[feature.inert]]\ncode = 'WF-F005'\nfact = 'a'\neq = 1\nreason = 'r'\n"
    fault = own_fault(load(tmp_path, HEAD + FEATURE + text))
    assert "inert number 1 of feature 'f': WF-F005 is a code of the host" in fault


def test_show_and_why_tell_it(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    site.family()
    site.plugin("skip", feature("skip", SHORT))
    wf = runner(site, monkeypatch)
    shown = json.loads(wf("show", "skip", "--json").stdout)["features"][0]["inert"]
    assert shown == [{"code": "TOY-7", "reason": "all {value} steps are computed."}]
    assert "does nothing where" in wf("show", "skip").stdout
    why = wf("why", "skip", "--model", "some/id", "--family", "toy", "--steps", "2")
    assert why.exit_code == 0
    assert "inert   TOY-7  all 2 steps are computed." in why.stdout
    assert "TOY-7" not in wf("why", "skip", "--model", "some/id", "--family", "toy", "--steps", "3").stdout


def test_the_table_of_a_report_tells_it_in_words(site: Site, capsys: Any) -> None:
    warnings = [warning.to_json() for warning in plan(site, {"skip": True}, 2).warnings]
    print_report({"plan": "x", "effective": {}, "steps": {}, "fallbacks": [], "warnings": warnings})
    assert "warning: TOY-7 all 2 steps are computed." in capsys.readouterr().out
