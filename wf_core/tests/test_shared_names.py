"""Values of a selector that are no feature's own name: groups with ranks, file endings, and ambiguous names."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_resolve import MODEL, catalog, codes, refusal

ON_CUDA = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "{name} needs CUDA"\n'
CUDA = MODEL.with_({"device.type": "cuda", "device.sm": 90})


def kernel(
    name: str, order: str, more: str = "", *, state: str = "", kind: str = "attention-provider"
) -> str:
    """A plugin with one feature that answers to its own name and to ``auto``."""
    return (
        f'schema = 1\nname = "{name}"\napi = 1\nkind = "{kind}"\n[[feature]]\nname = "{name}"\ntier = "exact"\n'
        f'evidence = [{{ counter = "calls", at_least = 1 }}]\nslot = "attention"\n{state}\n'
        f'select = [{{ switch = "attention_backend", values = ["{name}"], groups = ["auto"], order = {order} }}]\n'
        f"{more}"
    )


LATER = 'state = "unavailable: not implemented"'
BY_DEVICE = '[{ order = 10, when = { fact = "device.sm", eq = 90 } }, { order = 50 }]'


@pytest.fixture
def kernels(site: Site) -> Catalog:
    site.plugin("hopper", kernel("hopper", BY_DEVICE, ON_CUDA.format(name="hopper")))
    site.plugin("plain", kernel("plain", "30"))
    site.plugin("slow", kernel("slow", "90"))
    return catalog(site)


def chosen(found: Catalog, facts: Facts, **request: Any) -> list[str]:
    plan = resolve({"attention_backend": "auto", **request}, facts, found)
    return [feature.name for feature in plan.features]


def test_the_best_rank_for_the_facts_is_chosen(kernels: Catalog) -> None:
    assert chosen(kernels, CUDA) == ["hopper"]
    assert chosen(kernels, CUDA.with_({"device.sm": 80})) == ["plain"]
    without = Facts({name: fact for name, fact in CUDA.items() if name != "device.sm"})
    assert chosen(kernels, without) == ["plain"], "a rank whose condition is unknown does not count"


def test_what_a_condition_rules_out_gives_way_to_the_next(kernels: Catalog) -> None:
    on_cpu = MODEL.with_({"device.sm": 90})
    plan = resolve({"attention_backend": "auto"}, on_cpu, kernels)
    [feature] = plan.features
    assert (feature.name, feature.switch) == ("plain", "attention_backend")
    assert plan.request_dict() == {"attention_backend": "auto"}


def test_what_a_rule_rules_out_gives_way_to_the_next(site: Site) -> None:
    site.plugin("first", kernel("first", "10", '[[feature.option]]\nname = "x"\ntype = "int"\n'))
    path = site.folder / "toyplug_first" / "wf-plugin.toml"
    path.write_text(path.read_text().replace("slot =", 'effects = ["host-sync"]\nslot ='))
    site.plugin("plain", kernel("plain", "30"))
    graph = kernel("graph", "1", kind="execution-mode").replace("attention_backend", "quantization")
    graph = graph.replace('slot = "attention"', 'effects = ["captures-graph"]')
    site.plugin("graph", graph)
    found = catalog(site)
    assert chosen(found, MODEL) == ["first"]
    assert chosen(found, MODEL, quantization="graph") == ["plain", "graph"]


@pytest.mark.parametrize(("order", "best"), [("90", "plain"), ("10", "both")])
def test_only_the_rank_in_this_selector_counts_in_any_spelling(site: Site, order: str, best: str) -> None:
    elsewhere = '{ switch = "quantization", groups = ["auto"], order = 50 }, '
    text = kernel("both", order).replace("select = [", f"select = [{elsewhere}")
    site.plugin("both", text.replace(f'["auto"], order = {order}', f'["Auto"], order = {order}'))
    site.plugin("plain", kernel("plain", "30"))
    assert chosen(catalog(site), MODEL) == [best]


def test_equal_ranks_are_told_apart_by_name(site: Site) -> None:
    for name in ("zeta", "alpha"):
        site.plugin(name, kernel(name, "10"))
    assert chosen(catalog(site), MODEL) == ["alpha"]


def test_what_is_only_declared_is_never_chosen_where_another_answers(site: Site) -> None:
    site.plugin("later", kernel("later", "1", state=LATER))
    site.plugin("plain", kernel("plain", "30", ON_CUDA.format(name="plain")))
    found = catalog(site)
    assert chosen(found, CUDA) == ["plain"]
    site.plugin("slow", kernel("slow", "90"))
    assert chosen(catalog(site), MODEL) == ["slow"]


def test_where_all_are_only_declared_the_best_of_them_is_judged(site: Site) -> None:
    site.plugin("later", kernel("later", "20", state=LATER))
    site.plugin("much-later", kernel("much-later", "10", state=LATER))
    plan = resolve({"attention_backend": "auto"}, MODEL, catalog(site))
    assert [feature.name for feature in plan.features] == ["much-later"]
    assert plan.not_activatable == ("much-later",)


def test_what_is_blocked_does_not_answer(site: Site) -> None:
    site.plugin("first", kernel("first", "10"))
    site.plugin("plain", kernel("plain", "30"))
    assert chosen(catalog(site, WF_BLOCK="first"), MODEL) == ["plain"]


def test_only_those_for_the_models_family_answer(site: Site) -> None:
    site.plugin("first", kernel("first", "10").replace("slot =", 'families = ["other"]\nslot ='))
    site.plugin("plain", kernel("plain", "30"))
    assert chosen(catalog(site), MODEL) == ["plain"]


def test_no_choice_left_names_every_candidate_and_its_reason(site: Site) -> None:
    for name in ("first", "second"):
        site.plugin(name, kernel(name, "10", ON_CUDA.format(name=name)))
    found = refusal({"attention_backend": "auto"}, MODEL, catalog(site))
    [violation] = found.violations
    assert violation.code == "WF-R011"
    assert violation.reason == (
        "attention_backend=auto leaves no choice; first: first needs CUDA; second: second needs CUDA."
    )
    assert {"attention_backend", "auto", "first", "second", "device"} <= {*violation.involves}
    assert str(found.nearest) == "leave out attention_backend"


def test_a_shared_name_takes_no_options(kernels: Catalog) -> None:
    request = {"attention_backend": {"name": "auto", "window": 3}}
    [violation] = refusal(request, MODEL, kernels).violations
    assert violation.code == "WF-R006"
    assert (
        violation.reason
        == "attention_backend=auto chooses among hopper, plain, slow and takes no option 'window'."
    )
    assert violation.fix == "Name the feature that is meant."


def test_a_feature_named_beside_the_shared_name_fills_the_same_slot(kernels: Catalog, site: Site) -> None:
    switch = '[[switch]]\nname = "extra"\nfeature = "extra"\nform = "flag"\n'
    site.plugin("extra", kernel("extra", "99") + switch)
    found = refusal({"attention_backend": "auto", "extra": True}, MODEL, catalog(site))
    assert codes(found) == ["WF-R011"], "auto may not be ignored: every other choice of it shares the slot"
    assert {"attention_backend", "extra"} <= {*found.violations[0].involves}


# --- endings of a file's name ---------------------------------------------------------------------------------------

PACKED = """
schema = 1
name = "packed"
api = 1
kind = "quantizer"
[[feature]]
name = "packed"
tier = "exact"
evidence = [{ counter = "layers", at_least = 1 }]
select = [{ switch = "quantization", values = ["packed"], suffix = ".PAK", suffix_option = "path" }]
[[feature.option]]
name = "path"
type = "path"
[[feature.option]]
name = "bits"
type = "int"
"""


@pytest.mark.parametrize("value", ["model.pak", "dir/Model.PAK", {"mode": "model.pak", "bits": 4}])
def test_a_value_with_the_ending_picks_the_feature_and_is_its_option(site: Site, value: Any) -> None:
    site.plugin("packed", PACKED)
    [feature] = resolve({"quantization": value}, MODEL, catalog(site)).features
    name = value["mode"] if isinstance(value, dict) else value
    assert feature.name == "packed"
    assert feature.options_dict() == {"path": name, "bits": 4 if isinstance(value, dict) else None}


def test_a_name_wins_over_an_ending_and_another_ending_is_no_value(site: Site) -> None:
    site.plugin("packed", PACKED)
    found = catalog(site)
    [feature] = resolve({"quantization": "packed"}, MODEL, found).features
    assert feature.options_dict() == {"path": None, "bits": None}
    assert codes(refusal({"quantization": "model.zip"}, MODEL, found)) == ["WF-R002"]


# --- names that mean several things ---------------------------------------------------------------------------------


def test_an_ambiguous_name_is_refused_with_what_it_may_mean(site: Site) -> None:
    text = kernel("fastvideo-sla", "1", kind="sparse-kernel").replace(
        "attention_backend", "approximate_attention"
    )
    site.plugin("fastvideo-sla", text.replace('values = ["fastvideo-sla"]', 'values = ["fastvideo_sla"]'))
    found = refusal({"approximate_attention": {"kind": "SLA"}}, MODEL, catalog(site))
    [violation] = found.violations
    assert violation.code == "WF-R010"
    assert violation.involves == (
        "approximate_attention", "SLA", "fastvideo_sla", "fastvideo_sagesla", "lightx2v_sla_mask",
    )  # fmt: skip
    assert "projects call different techniques so" in violation.reason
    assert str(found.nearest) == "set approximate_attention=fastvideo_sla", "the only one that is installed"
