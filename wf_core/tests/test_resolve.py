"""Resolving: plans and refusals from conditions, slots, effects and order, the same for every order of input."""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from typing import Any

import pytest

from wf_core import data
from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.manifests.effects import vocabulary
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.plan import Plan, Refusal
from wf_core.resolving.rejudging import not_activatable, rejudge
from wf_core.resolving.resolve import resolve
from wf_core.resolving.rules import core_rules

from .conftest import Site

MODEL = Facts.of(
    {
        "model.family": "toy",
        "model.id": "toy-1b",
        "model.heads": 12,
        "model.hooked": "",
        "model.training": False,
        "model.pixel_multiple": (16, 16),
        "vae.temporal_factor": 4,
        "device.type": "cpu",
    },
    "test",
)

PRESET_CONDITION = """
[[feature.condition]]
any_of = [{ fact = "model.id", in_table = "presets" }, { option = "coefficients", present = true }]
reason = "no preset for {value}"
code = "TOY-1"
[[feature.condition]]
fact = "run.num_inference_steps"
ge = 4
reason = "needs at least 4 steps, got {value}"
[table.presets]
keys = ["Toy-1B"]
"""


def feature(name: str, extra: str = "", kind: str = "fusion", tier: str = 'tier = "exact"') -> str:
    return (
        f'schema = 1\nname = "{name}"\napi = 1\nkind = "{kind}"\n[[feature]]\nname = "{name}"\n{tier}\n'
        f'evidence = [{{ counter = "calls", at_least = 1 }}]\n{extra}\n'
        f'[[switch]]\nname = "{name}"\nfeature = "{name}"\nform = "feature"\n'
    )


def catalog(site: Site, **environ: str) -> Catalog:
    if not (site.folder / "toyplug_toy").exists():
        site.family()
    return Catalog.of(discover([str(site.folder)], environ))


def refusal(request: dict[str, Any], facts: Facts, catalog: Catalog, **run: Any) -> Refusal:
    with pytest.raises(Refused) as caught:
        resolve(request, facts, catalog, run=run)
    return caught.value.refusal


def codes(found: Refusal) -> list[str]:
    return [violation.code for violation in found.violations]


def test_an_empty_request_is_an_empty_plan(site: Site) -> None:
    plan = resolve({}, MODEL, catalog(site))
    assert plan.features == ()
    assert plan.family == "toy"
    assert plan.host_keys_dict()["on_ineligible"] == "error"
    assert "the stock computation runs" in plan.explain()


def test_a_planned_feature_carries_what_the_session_needs(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    plan = resolve({"feature_cache": {"algorithm": "alpha", "threshold": 0.5}}, MODEL, catalog(site))
    [planned] = plan.features
    assert (planned.plugin, planned.name, planned.kind, planned.tier) == (
        "cache-alpha",
        "alpha",
        "feature-cache",
        "approximate",
    )
    assert planned.options_dict() == {"threshold": 0.5, "coefficients": None}
    assert planned.option("threshold") == 0.5
    assert planned.option("coefficients", "none") == "none"
    assert planned.effects == ("skips-blocks@stack", "host-state@stack")
    assert (planned.slot, planned.stage, planned.switch) == ("feature-cache", "cache", "feature_cache")
    assert plan.request_dict() == {"feature_cache": {"algorithm": "alpha", "threshold": 0.5}}
    assert plan.unknown() == ("run.num_inference_steps",)
    assert json.loads(json.dumps(plan.to_json()))["features"][0]["options"]["threshold"] == 0.5
    assert plan.to_json()["facts"]["model.id"] == {"value": "toy-1b", "source": "test"}


def test_a_default_is_the_value_of_an_option_that_was_not_given(site: Site) -> None:
    site.cache("cache-alpha")
    assert resolve({"alpha": True}, MODEL, catalog(site)).features[0].option("threshold") == 0.25


# --- conditions at the three moments -------------------------------------------------------------------------------


def test_an_unmet_condition_refuses_with_its_own_code_and_names(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    found = refusal({"feature_cache": "alpha"}, MODEL.with_({"model.id": "mine"}), catalog(site))
    [violation] = found.violations
    assert (violation.code, violation.reason) == ("TOY-1", "no preset for mine")
    assert set(violation.involves) == {"feature_cache", "alpha", "coefficients"}


def test_what_a_missing_device_lacks_is_no_second_reason(site: Site) -> None:
    more = (
        '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA"\n'
        '[[feature.condition]]\nfact = "device.sm"\nge = 80\nreason = "needs sm80, this is {value}"\n'
        '[[feature.condition]]\nfact = "model.heads"\nlt = 4\nreason = "too many heads"\n'
        '[[feature.condition]]\nfact = "package.kernel"\npresent = true\nreason = "needs the package kernel"\n'
    )
    site.cache("cache-alpha", more=more)
    nothing = MODEL.with_({"device.sm": None, "package.kernel": None})
    found = refusal({"alpha": True}, nothing, catalog(site))
    assert [violation.reason for violation in found.violations] == ["needs CUDA", "too many heads"]
    alone = refusal(
        {"alpha": True},
        nothing.with_({"device.type": "cuda", "model.heads": 1}),
        catalog(site),
    )
    reasons = ["needs sm80, this is none", "needs the package kernel"]
    assert [violation.reason for violation in alone.violations] == reasons, "with a device it is a reason"


def test_an_unknown_condition_is_judged_again_when_the_fact_is_there(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    plan = resolve({"alpha": True}, MODEL, catalog(site))
    assert len(plan.features[0].pending) == 1
    assert rejudge(plan, MODEL) == ()
    assert rejudge(plan, MODEL.with_({"run.num_inference_steps": 4})) == ()
    [violation] = rejudge(plan, MODEL.with_({"run.num_inference_steps": 3}))
    assert violation.reason == "needs at least 4 steps, got 3"
    assert violation.involves == ("alpha",)
    [violation] = rejudge(plan, MODEL, final=True)
    assert (violation.code, "run.num_inference_steps" in violation.reason) == ("WF-F002", True)


NEEDS_CUDA = (
    '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA, this is {value}"\n'
)


def test_what_was_met_at_resolve_is_judged_again_by_what_is_opened_and_called(site: Site) -> None:
    site.cache("cache-alpha", more=NEEDS_CUDA + PRESET_CONDITION)
    cuda = MODEL.with_({"device.type": "cuda"})
    plan = resolve({"alpha": True}, cuda, catalog(site), run={"num_inference_steps": 8})
    assert plan.features[0].pending == ()
    own = [condition for condition in plan.features[0].conditions if not condition.code.startswith("WF-")]
    assert len(own) == 3
    assert rejudge(plan, cuda) == ()
    [violation] = rejudge(plan, MODEL)
    assert violation.reason == "needs CUDA, this is cpu"
    [violation] = rejudge(plan, cuda.with_({"model.id": "another"}))
    assert violation.code == "TOY-1"
    [violation] = rejudge(plan, cuda.with_({"run.num_inference_steps": 2}), final=True)
    assert violation.reason == "needs at least 4 steps, got 2"
    [violation] = rejudge(plan, cuda, final=True)
    assert violation.code == "WF-F002"


def test_a_plan_is_not_for_a_model_of_another_family(site: Site) -> None:
    site.cache("cache-alpha", more=NEEDS_CUDA)
    plan = resolve({}, MODEL, catalog(site))
    [violation] = rejudge(plan, MODEL.with_({"model.family": "wan"}))
    assert (violation.code, violation.involves) == ("WF-F003", ("family", "wan"))
    assert "a model of toy" in violation.reason
    assert rejudge(plan, Facts.of({}, "test")) == ()


def test_conditions_do_not_change_the_hash(site: Site) -> None:
    site.cache("cache-alpha")
    before = resolve({"alpha": 0.5}, MODEL, catalog(site))
    path = site.folder / "toyplug_cache_alpha" / "wf-plugin.toml"
    path.write_text(
        path.read_text().replace(
            "[[switch]]",
            PRESET_CONDITION.split("[table")[0].replace('in_table = "presets"', 'eq = "toy-1b"')
            + "[[switch]]",
        )
    )
    after = resolve({"alpha": 0.5}, MODEL, catalog(site))
    assert after.features[0].conditions
    assert after.hash == before.hash


def test_a_model_in_training_refuses_whatever_does_not_say_that_gradients_survive_it(site: Site) -> None:
    site.plugin("fast", feature("fast", 'effects = ["inference-only"]'))
    site.plugin("silent", feature("silent"))
    site.plugin("safe", feature("safe", 'effects = ["training-safe"]'))
    training = MODEL.with_({"model.training": True})
    found = refusal({"fast": True, "silent": True, "safe": True}, training, catalog(site))
    assert [(v.code, v.involves) for v in found.violations] == [
        ("WF-C070", ("fast", "model")),
        ("WF-C070", ("silent", "model")),
    ]
    plan = resolve({"fast": True}, MODEL, catalog(site))
    assert [violation.code for violation in rejudge(plan, training)] == ["WF-C070"]
    assert resolve({"safe": True}, training, catalog(site)).features


def test_a_table_is_still_known_when_a_plan_is_judged_again(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    facts = Facts({name: fact for name, fact in MODEL.items() if name != "model.id"})
    plan = resolve({"alpha": True}, facts, catalog(site), run={"num_inference_steps": 8})
    assert rejudge(plan, facts.with_({"model.id": "TOY-1B"})) == ()
    assert [v.code for v in rejudge(plan, facts.with_({"model.id": "other"}))] == ["TOY-1"]


def test_run_arguments_are_judged_at_once_when_they_are_given(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    found = refusal({"alpha": True}, MODEL, catalog(site), num_inference_steps=2, height=481, num_frames=80)
    assert codes(found) == ["WF-G001", "WF-G002", "WF-F001"]
    assert "480 or 496" in found.violations[0].reason
    assert "77 or 81" in found.violations[1].reason


def test_host_keys_are_facts_of_the_request(site: Site) -> None:
    more = '[[feature.condition]]\nfact = "request.allow_uncalibrated"\neq = true\nreason = "say allow_uncalibrated"\n'
    site.cache("cache-alpha", more=more)
    assert codes(refusal({"alpha": True}, MODEL, catalog(site))) == ["WF-F001"]
    assert resolve({"alpha": True, "allow_uncalibrated": True}, MODEL, catalog(site)).features


# --- the model and the plugin --------------------------------------------------------------------------------------


def test_a_hooked_base_is_refused_even_without_a_request(site: Site) -> None:
    found = refusal({}, MODEL.with_({"model.hooked": "vae carries an accelerate hook"}), catalog(site))
    assert codes(found) == ["WF-M003"]
    assert "vae carries an accelerate hook" in found.one_line()


def test_a_family_without_a_plugin(site: Site) -> None:
    site.cache("cache-alpha")
    found = refusal({"alpha": True}, MODEL.with_({"model.family": "ltx"}), catalog(site))
    assert codes(found) == ["WF-M002"], "what a feature supports is no reason of its own beside it"
    assert "ltx" in found.violations[0].involves
    unknown = Facts.of({"model.classes": ["LtxTransformer"]}, "test")
    for request in ({"alpha": True}, {}):
        [violation] = refusal(request, unknown, catalog(site)).violations
        assert violation.reason == "no installed plugin provides the model family of LtxTransformer."


def test_a_feature_for_another_family_or_a_seam_that_is_not_there(site: Site) -> None:
    site.plugin("fuse-a", feature("fuse-a", 'families = ["wan"]'))
    site.plugin("fuse-b", feature("fuse-b", 'seams = ["rope", "stack"]'))
    found = refusal({"fuse-a": True, "fuse-b": True}, MODEL, catalog(site))
    assert codes(found) == ["WF-M001", "WF-M004"]
    assert "only wan" in found.violations[0].reason
    assert "rope" in found.violations[1].reason
    assert "stack" not in found.violations[1].reason


def test_a_seam_that_a_family_need_not_offer(site: Site) -> None:
    site.plugin("fuse-b", feature("fuse-b", 'seams = ["rope", "stack"]\noptional_seams = ["rope"]'))
    [planned] = resolve({"fuse-b": True}, MODEL, catalog(site)).features
    assert planned.seams == ("rope", "stack")


def test_a_condition_of_the_family(site: Site) -> None:
    site.family()
    path = site.folder / "toyplug_toy" / "wf-plugin.toml"
    condition = '[[family.condition]]\nfact = "model.heads"\nge = 8\nreason = "{value} heads are too few"\n'
    path.write_text(path.read_text() + condition)
    here = resolve({}, MODEL, catalog(site))
    assert here.pending == ()
    assert [v.code for v in rejudge(here, MODEL.with_({"model.heads": 2}))] == ["WF-M005"]
    found = refusal({}, MODEL.with_({"model.heads": 2}), catalog(site))
    assert codes(found) == ["WF-M005"]
    without = Facts({name: fact for name, fact in MODEL.items() if name != "model.heads"})
    plan = resolve({}, without, catalog(site))
    assert [v.reason for v in rejudge(plan, MODEL.with_({"model.heads": 2}))] == ["2 heads are too few"]


def test_what_is_blocked_is_refused_with_its_state(site: Site) -> None:
    site.cache("cache-alpha")
    found = refusal({"alpha": True}, MODEL, catalog(site, WF_BLOCK="cache-alpha"))
    assert codes(found) == ["WF-P001"]
    assert "blocked: WF_BLOCK names" in found.violations[0].reason


DECLARED_ONLY = 'state = "unavailable: not implemented"'


def test_what_is_only_declared_is_judged_like_everything_else_and_listed(site: Site) -> None:
    site.plugin("later", feature("later", DECLARED_ONLY + '\neffects = ["compiles"]'))
    site.plugin("graph", feature("graph", GRAPH, "execution-mode"))
    site.cache("cache-alpha", more=NEEDS_CUDA)
    plan = resolve({"later": True, "graph": True}, MODEL, catalog(site))
    assert plan.not_activatable == ("later",)
    assert plan.feature("later").not_activatable == "not implemented"  # type: ignore[union-attr]
    assert plan.feature("graph").not_activatable == ""  # type: ignore[union-attr]
    assert plan.to_json()["not_activatable"] == ["later"]
    assert "judged only, cannot be activated: later" in plan.explain()
    [violation] = not_activatable(plan)
    assert (violation.code, violation.involves) == ("WF-P002", ("later", "later"))
    assert violation.reason == "later of later cannot be activated: not implemented."


def test_the_conditions_of_what_is_only_declared_hold_too(site: Site) -> None:
    site.cache("cache-alpha", more=NEEDS_CUDA)
    path = site.folder / "toyplug_cache_alpha" / "wf-plugin.toml"
    path.write_text(path.read_text().replace('slot = "f', DECLARED_ONLY + '\nslot = "f'))
    [violation] = refusal({"alpha": True}, MODEL, catalog(site)).violations
    assert violation.reason == "needs CUDA, this is cpu"


def test_a_family_that_is_only_declared_is_judged_and_listed(site: Site) -> None:
    site.family()
    path = site.folder / "toyplug_toy" / "wf-plugin.toml"
    path.write_text(path.read_text().replace("[family]\n", "[family]\n" + DECLARED_ONLY + "\n"))
    plan = resolve({}, MODEL, catalog(site))
    assert plan.not_activatable == ("toy",)
    [violation] = not_activatable(plan)
    assert (violation.code, violation.involves) == ("WF-M007", ("family", "toy"))


# --- slots, effects, rules -----------------------------------------------------------------------------------------


def test_two_features_of_one_slot(site: Site) -> None:
    site.cache("cache-alpha")
    site.cache("cache-beta")
    found = refusal({"feature_cache": "alpha", "beta": 0.5}, MODEL, catalog(site))
    [violation] = found.violations
    assert violation.code == "WF-C001"
    assert set(violation.involves) == {"feature_cache", "alpha", "beta"}
    assert "feature-cache" in violation.reason
    assert violation.fix == "Keep one of beta and alpha."
    assert [str(chain) for chain in violation.chains] == [
        "beta=0.5 -> beta -> the place feature-cache",
        "feature_cache=alpha -> alpha -> the place feature-cache",
    ]
    assert [(str(fix.change), fix.single) for fix in found.fixes] == [
        ("leave out beta", True),
        ("leave out feature_cache", True),
    ]
    assert found.nearest == found.fixes[0].change


def test_what_is_wrong_below_a_key_goes_and_the_key_stays(site: Site) -> None:
    """Without the key what is below it would be ignored, and would have to go too: three instead of two."""
    site.cache("cache-alpha")
    asked = {"feature_cache": {"algorithm": "alpha"}, "feature_cache.x": 1, "feature_cache.y": 2}
    assert str(refusal(asked, MODEL, catalog(site)).nearest) == "leave out feature_cache.x, feature_cache.y"


GRAPH = 'effects = ["captures-graph@denoiser"]\nstage = "graph"'


def test_a_graph_refuses_host_state_inside_it_without_knowing_the_plugin(site: Site) -> None:
    site.plugin("graph", feature("graph", GRAPH, "execution-mode"))
    site.cache("cache-alpha")
    found = refusal({"graph": True, "alpha": True}, MODEL, catalog(site))
    assert codes(found) == ["WF-C010", "WF-C012"]
    assert set(found.violations[0].involves) == {"graph", "alpha"}


def test_host_state_outside_the_captured_seam_is_legal(site: Site) -> None:
    site.plugin("graph", feature("graph", GRAPH, "execution-mode"))
    site.plugin("gate", feature("gate", 'effects = ["host-state@guidance"]\nstage = "guidance"'))
    plan = resolve({"graph": True, "gate": True}, MODEL, catalog(site))
    assert [planned.name for planned in plan.features] == ["gate", "graph"]


def test_an_untested_pair_is_a_warning_and_refused_when_strict(site: Site) -> None:
    degree = '[[feature.option]]\nname = "degree"\ntype = "int"\ndefault = 2\n'
    site.plugin(
        "spread", feature("spread", f'effects = ["occupies-ranks(degree)"]\n{degree}', "parallel-strategy")
    )
    site.plugin("static", feature("static", 'effects = ["rank-uniform-decision"]'))
    request = {"spread": True, "static": True}
    plan = resolve(request, MODEL, catalog(site))
    assert [warning.code for warning in plan.warnings] == ["WF-C031"]
    assert plan.warnings[0].level == "untested"
    assert "warning" in plan.explain()
    assert codes(refusal(request, MODEL, catalog(site, WF_STRICT="1"))) == ["WF-C031"]
    assert resolve({"spread": {"degree": 1}, "static": True}, MODEL, catalog(site)).warnings == ()


def test_a_third_partys_effect_and_rule_work_without_the_core(site: Site) -> None:
    extra = 'effects = ["melts@attention"]'
    rule = (
        '[[effect]]\nname = "melts"\ndoc = "It melts."\n'
        '[[rule]]\ncode = "ICE-1"\nlevel = "forbid"\npair = ["melts", "compiles"]\nreason = "It would drip."\n'
    )
    site.plugin("ice", feature("ice", extra) + rule)
    site.plugin("oven", feature("oven", 'effects = ["compiles"]'))
    found = refusal({"ice": True, "oven": True}, MODEL, catalog(site))
    assert codes(found) == ["ICE-1"]
    assert resolve({"ice": True}, MODEL, catalog(site)).features


def test_an_effect_may_depend_on_an_option(site: Site) -> None:
    when = 'effects = [{ effect = "reloads-weights", when = { option = "mode", eq = "disk" } }]\n'
    mode = '[[feature.option]]\nname = "mode"\ntype = "choice"\nchoices = ["disk", "ram"]\n'
    site.plugin("place", feature("place", when + mode, "placement"))
    site.plugin("quant", feature("quant", 'effects = ["replaces-linear"]', "quantizer"))
    assert codes(refusal({"place": {"mode": "disk"}, "quant": True}, MODEL, catalog(site))) == ["WF-C041"]
    assert resolve({"place": {"mode": "ram"}, "quant": True}, MODEL, catalog(site)).features


def test_everything_that_is_wrong_is_collected(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    site.cache("cache-beta")
    request = {"alpha": True, "beta": True, "gamma": 1, "profile": "official"}
    found = refusal(request, MODEL.with_({"model.id": "mine"}), catalog(site))
    assert sorted(codes(found)) == ["TOY-1", "WF-C001", "WF-C060", "WF-C060", "WF-R001"]
    assert "(and 4 more reasons; wf resolve lists all)" in found.one_line()
    assert "\n" not in found.one_line()
    text = found.explain()
    assert all(code in text for code in codes(found))
    assert found.to_json()["legal"] is False


def test_the_core_table_is_sound() -> None:
    rules = core_rules()
    names = [rule.code for rule in rules]
    assert len(names) == len(set(names))
    other = [row["code"] for row in data.table("codes")["code"]]
    assert len(other) == len(set(other))
    assert not set(names) & set(other)
    for rule in rules:
        assert rule.reason.endswith(".")
        assert rule.level in ("forbid", "untested")
        assert {*rule.pair, *filter(None, [rule.effect])} <= set(vocabulary())


# --- order and identity --------------------------------------------------------------------------------------------


def test_order_is_by_stage_then_before_and_after_then_name(site: Site) -> None:
    for name, stage, extra in (
        ("zeta", "fusion", 'before = ["beta"]'),
        ("beta", "fusion", ""),
        ("alpha", "fusion", 'after = ["beta", "not-there"]'),
        ("outer", "parallel", ""),
        ("last", "graph", ""),
    ):
        site.plugin(name, feature(name, f'stage = "{stage}"\n{extra}'))
    found = catalog(site)
    names = ["zeta", "beta", "alpha", "outer", "last"]
    orders = {
        tuple(f.name for f in resolve(dict.fromkeys(order, True), MODEL, found).features)
        for order in itertools.permutations(names)
    }
    assert orders == {("outer", "zeta", "beta", "alpha", "last")}


def test_a_cycle_is_refused_and_named(site: Site) -> None:
    site.plugin("one", feature("one", 'before = ["two"]'))
    site.plugin("two", feature("two", 'before = ["one"]'))
    found = refusal({"one": True, "two": True}, MODEL, catalog(site))
    assert codes(found) == ["WF-P001", "WF-P001", "WF-O001"]
    assert "WF_BLOCK=one or WF_BLOCK=two" in found.violations[0].reason
    assert found.violations[-1].involves == ("one", "two")


def test_the_hash_says_what_runs_and_not_how_it_was_asked_for(site: Site) -> None:
    site.cache("cache-alpha")
    site.plugin("fuse", feature("fuse"))
    found = catalog(site)

    def plan(request: dict[str, Any]) -> Plan:
        return resolve(request, MODEL, found)

    one = plan({"feature_cache": {"algorithm": "alpha", "threshold": 0.5}, "fuse": True})
    same = [
        {"fuse": True, "feature_cache": {"threshold": 0.5, "algorithm": "alpha"}},
        {"fuse": True, "alpha": 0.5},
        {"fuse": True, "alpha": "0.5", "feature_cache": "alpha", "on_ineligible": "error"},
    ]
    assert {plan(request).hash for request in same} == {one.hash}
    assert len(one.hash) == 16
    different = [
        {"alpha": 0.5},
        {"fuse": True, "alpha": 0.6},
        {"fuse": True, "alpha": 0.5, "on_ineligible": "dense"},
    ]
    assert len({one.hash, *(plan(request).hash for request in different)}) == 4
    assert hash(plan(same[0])) == hash(plan(dict(reversed(same[0].items()))))


def test_the_hash_is_the_same_in_another_process(site: Site) -> None:
    site.family()
    site.cache("cache-alpha")
    code = (
        "import sys\nfrom wf_core.plugins.catalog import Catalog\nfrom wf_core.plugins.discovery import discover\n"
        "from wf_core.facts import Facts\nfrom wf_core.resolving.resolve import resolve\n"
        "facts = Facts.of({'model.family': 'toy', 'model.hooked': ''}, 'test')\n"
        f"print(resolve({{'alpha': 0.5}}, facts, Catalog.of(discover([{str(site.folder)!r}], {{}}))).hash)\n"
        "assert 'torch' not in sys.modules and 'toyplug_cache_alpha' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == resolve({"alpha": 0.5}, MODEL, catalog(site)).hash


def test_a_plan_and_a_refusal_as_text(site: Site) -> None:
    site.cache("cache-alpha", more=PRESET_CONDITION)
    site.cache("cache-beta")
    plan = resolve({"alpha": 0.5}, MODEL, catalog(site))
    assert plan.explain() == (
        f"plan {plan.hash} for toy: alpha=0.5\n"
        "  1. alpha (feature-cache of cache-alpha), approximate; asked for by alpha\n"
        "     options: threshold=0.5\n"
        "     tolerance: none: only for tests\n"
        "     at: stack; stage cache\n"
        "     effects: skips-blocks@stack, host-state@stack\n"
        "     evidence: skipped >= 1\n"
        "  checked when run.num_inference_steps is known: needs at least 4 steps, got ...\n"
        "  judged by: model.id = toy-1b, model.training = false, request.profile = none"
    )
    assert refusal({"alpha": True, "beta": True}, MODEL, catalog(site)).explain() == (
        "refused: alpha=true beta=true\n"
        "  WF-C001  Both would fill the same place (feature-cache), and only one of them could take effect.\n"
        "           alpha=true -> alpha -> the place feature-cache\n"
        "           beta=true -> beta -> the place feature-cache\n"
        "what to change (any one of these makes it legal):\n"
        "  leave out alpha\n"
        "  leave out beta"
    )
