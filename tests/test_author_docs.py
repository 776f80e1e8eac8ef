"""docs/authors/: nothing that an author can use is left out, and what the pages show works as it stands there."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from support.pages import blocks
from wf_core import Host, Refused, __version__, api, hookspecs, testing
from wf_core.cli import main
from wf_core.isolation.guard import GLOBAL_SETTERS
from wf_core.manifests.manifest import FILE_NAME, Manifest
from wf_core.manifests.toml_reader import Table
from wf_core.manifests.vocabulary import KINDS
from wf_core.testing import Bench, host_of
from wf_core.testing.cases import TOY
from wf_core.testing.checks import all_checks, checks_for
from wf_core.testing.conformance import CLASSES, Conformance
from wf_core.testing.examination import apply, families_beside, subjects
from wf_core.testing.hosts import record_of

AUTHORS = Path(__file__).parents[1] / "docs" / "authors"
PAGES = sorted(path.relative_to(AUTHORS).as_posix() for path in AUTHORS.rglob("*.md"))
DECLARED_ONLY = sorted({*KINDS} - {*CLASSES})
IN_A_PROCESS = {
    "importing_it_is_cheap_and_changes_nothing",
    "importing_it_changes_no_result",
    "it_works_alone_with_wf_core",
    "ranks_decide_alike",
}
"""Checks that start a process, and take seconds: `test_new_plugin.py` makes them on what `wf new-plugin` writes."""


def page(name: str) -> str:
    return (AUTHORS / name).read_text(encoding="utf-8")


def prose(name: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^```.*?^```$", "", page(name), flags=re.S | re.M)


# --- nothing is left out -----------------------------------------------------------------------------------------


def hooks() -> dict[str, str]:
    """The hooks with the pages that must have them."""
    kinds = {hook: kind for kind, hook in hookspecs.HOOK_OF_KIND.items()} | {"wf_calibrator": "calibrator"}
    kinds["wf_prompt_scorer"] = "model-source"
    found = [name for name in vars(hookspecs) if name.startswith("wf_")]
    return {name: kinds.get(name, "no kind") for name in found}


@pytest.mark.parametrize("hook", sorted(hooks()))
def test_every_hook_has_a_page_with_its_signature(hook: str) -> None:
    text = page(f"kinds/{hooks()[hook]}.md")
    assert f"@hookimpl\ndef {hook}(" in text
    said = " ".join((getattr(hookspecs, hook).__doc__ or "").replace("``", "`").split())
    assert said and said in " ".join(text.split())


@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_has_a_page_that_is_listed(kind: str) -> None:
    assert page(f"kinds/{kind}.md").startswith(f"# {kind}\n")
    assert f"[{kind}](kinds/{kind}.md)" in page("README.md")


@pytest.mark.parametrize("kind", DECLARED_ONLY)
def test_a_kind_that_nothing_implements_says_so_and_invents_no_example(kind: str) -> None:
    assert "Not settled yet" in page(f"kinds/{kind}.md")
    assert [block.language for block in blocks(AUTHORS / f"kinds/{kind}.md")] == ["python"]
    assert kind in page("stability.md")


@pytest.mark.parametrize("check", all_checks(), ids=lambda check: check.name)
def test_every_check_is_documented(check: Any) -> None:
    assert check.says
    assert f"| `{check.name}` | {check.says}" in page("conformance.md")
    kinds = [kind for kind in CLASSES if check in checks_for(kind, implemented=True)]
    words = check.name.replace("_", " ")
    assert kinds
    assert [k for k in kinds if words not in " ".join(page(f"kinds/{k}.md").split())] == []


def test_every_conformance_class_and_what_it_takes_is_documented() -> None:
    text = page("conformance.md")
    own = [name for name in vars(Conformance) if not name.startswith(("_", "test_")) and name != "kind"]
    settings = [name for name in own if not callable(getattr(Conformance, name))]
    assert {"plugin", "families", "trials", "expected_to_fail"} == set(settings)
    assert [
        name for name in (*settings, *(c.__name__ for c in CLASSES.values())) if f"`{name}`" not in text
    ] == []


def test_the_answer_of_wf_check_is_documented() -> None:
    """On a plugin that is only declared, which is quick; the checks' own keys are the same for all."""
    result = CliRunner().invoke(main, ["check", "quant-fp8", "--json"], catch_exceptions=False)
    answer = json.loads(result.stdout)
    assert (result.exit_code, answer["implemented"], answer["conforms"]) == (2, False, False)
    text = prose("conformance.md")
    assert [key for key in (*answer, *answer["checks"][0]) if f"`{key}`" not in text] == []
    assert "`passed`, `failed` or `not applicable`" in " ".join(text.split())


def test_the_seams_that_the_toy_family_lacks_are_named() -> None:
    [lacking] = re.findall(r"every seam but (.*?)\. ", " ".join(page("conformance.md").split()))
    family = record_of(TOY).manifest.family
    assert set(re.findall(r"`([\w.]+)`", lacking)) == {*api.SEAMS} - {*family.seams}


def test_every_setting_that_a_mode_may_hold_is_named() -> None:
    [table] = re.findall(
        r"^\| setting \| value \|\n\|---\|---\|\n((?:\|.*\n)+)", page("kinds/execution-mode.md"), re.M
    )
    named = [name for row in table.splitlines() for name in re.findall(r"`(\w+)`", row.split("|")[1])]
    assert sorted(named) == sorted(GLOBAL_SETTERS)


def test_every_fixture_is_documented() -> None:
    plugin = importlib.import_module("wf_core.testing.pytest_plugin")
    fixtures = [name for name in vars(plugin) if name.startswith("wf_")]
    assert sorted(fixtures) == ["wf_bench", "wf_host"]
    assert [name for name in fixtures if f"`{name}(" not in page("conformance.md")] == []


@pytest.mark.parametrize("module", [api, testing], ids=["api", "testing"])
def test_every_public_name_is_documented(module: Any) -> None:
    entries = dict(re.findall(r"^### (\w+)\n\n(.+)$", page("api.md"), re.M))
    assert [name for name in module.__all__ if len(entries.get(name, "").split()) < 4] == []
    assert sorted({*entries}) == sorted({*api.__all__, *testing.__all__})


def undocumented(cls: type) -> list[str]:
    """Public methods and properties of a class that neither it nor a class above it says anything about."""
    names = [name for name, found in vars(cls).items() if callable(found) or isinstance(found, property)]
    return [
        f"{cls.__name__}.{name}"
        for name in names
        if not name.startswith("_")
        and not any(getattr(vars(c).get(name), "__doc__", "") for c in cls.__mro__)
    ]


def test_every_public_method_says_what_it_does() -> None:
    classes = [found for name in api.__all__ if isinstance(found := getattr(api, name), type)]
    assert [name for cls in classes for name in undocumented(cls)] == []
    text = page("api.md")
    assert "`.add(name: str, amount: int=1) -> None`" in text and "`.ambiguous`" in text


def test_every_state_of_a_feature_is_documented() -> None:
    evidence = importlib.import_module("wf_core.sessions.evidence")
    states = [getattr(evidence, name) for name in ("EFFECTIVE", "PARTIAL", "INERT", "PENDING")]
    assert [state for state in states if f"| `{state}` |" not in page("tutorial.md")] == []


def test_every_page_is_reached_and_every_link_leads_somewhere() -> None:
    reached, waiting = set(), ["README.md"]
    while waiting:
        name = waiting.pop()
        reached.add(name)
        for link in re.findall(r"\]\(([^)\s]+)\)", page(name)):
            target, _, anchor = link.partition("#")
            path = (AUTHORS / name).parent / target if target else AUTHORS / name
            assert path.exists(), f"{name}: {link}"
            assert not anchor or anchor in anchors(path), f"{name}: {link}"
            if path.resolve().is_relative_to(AUTHORS) and path.suffix == ".md":
                found = path.resolve().relative_to(AUTHORS).as_posix()
                waiting += [] if found in reached or found in waiting else [found]
    assert sorted(reached) == PAGES


def anchors(path: Path) -> set[str]:
    """The anchors of a page, as GitHub makes them."""
    titles = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


# --- the examples ------------------------------------------------------------------------------------------------


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Writes the package of a kind's page, and gives its name as a module."""

    def write(kind: str) -> str:
        files = {block.file: block.text for block in blocks(AUTHORS / f"kinds/{kind}.md") if block.file}
        if FILE_NAME not in files:  # a calibrator stands beside a feature
            [files[FILE_NAME]] = [
                b.text for b in blocks(AUTHORS / "kinds/feature-cache.md") if b.file == FILE_NAME
            ]
        package = "wf_plugin_" + tomllib.loads(files[FILE_NAME])["name"].replace("-", "_")
        (tmp_path / package).mkdir()
        for name, text in files.items():
            (tmp_path / package / name).write_text(text, encoding="utf-8")
        monkeypatch.syspath_prepend(str(tmp_path))
        for name in [name for name in sys.modules if name.partition(".")[0] == package]:
            monkeypatch.delitem(sys.modules, name)
        return package

    return write


def failures(package: str) -> Iterator[str]:
    """What the checks that need no process of their own say against a plugin on the toy family."""
    record = record_of(package)
    beside, cases = families_beside([]), {}
    for check in checks_for(record.kind, implemented=True):
        for subject, case in subjects(record, beside, check) if check.name not in IN_A_PROCESS else ():
            result = apply(check, cases.setdefault((check.about, subject), case), subject)
            if result.state == "failed":
                yield f"{check.name}: {result.message}"


@pytest.mark.parametrize("kind", sorted({*CLASSES} - {"model-source"}))
def test_the_example_of_a_kind_conforms(kind: str, example: Any) -> None:
    assert list(failures(example(kind))) == []


@pytest.mark.parametrize("kind", sorted({*CLASSES} - {"model-source", "model-family"}))
def test_the_example_of_a_kind_takes_effect(kind: str, example: Any, wf_bench: Any) -> None:
    package = example(kind)
    [feature] = record_of(package).manifest.features
    bench: Bench = wf_bench()
    with host_of(TOY, package).session(bench.pipeline(), dict(feature.example)) as session:
        session.pipe(**bench.arguments())
        claim = session.report["effective"][feature.name]
    assert claim["state"] == "effective"
    text = page(f"kinds/{kind}.md")
    counted = [name for name, value in claim["evidence"].items() if isinstance(value, int)]
    by_the_base = [name for name in counted if f'counters.add("{name}"' not in text]
    assert [name for name in by_the_base if f"`{name}`" not in prose(f"kinds/{kind}.md")] == []


def test_the_example_of_a_model_source_is_asked_for_its_files(
    example: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A hub in a folder: nothing is downloaded."""
    hub = importlib.import_module("huggingface_hub")
    monkeypatch.setattr(hub, "snapshot_download", lambda name: str(tmp_path / "hub" / name))
    package = example("model-source")
    checkpoint = tmp_path / "hub" / "acme" / "small-video"
    checkpoint.mkdir(parents=True)
    (checkpoint / "model_index.json").write_text("{}")
    assert list(failures(package)) == []
    assert host_of(TOY, package).model_directory("acme-small") == checkpoint


def test_the_example_of_a_calibrator_measures(example: Any, wf_bench: Any) -> None:
    bench: Bench = wf_bench()
    host = host_of(TOY, example("calibrator"))
    calibrator = host.call_hook("cache-nth", "wf_calibrator", feature="nth", options={}, facts=api.Facts())
    pipe = bench.pipeline()
    with host.session(pipe, {}, extra={"calibrator": calibrator}) as session:
        ours = session.pipe(**bench.arguments()).frames
    assert (ours == pipe(**bench.arguments()).frames).all()
    result = json.loads(json.dumps(calibrator.result()))
    assert len(result["growth"]) == bench.call["num_inference_steps"]
    assert min(result["growth"]) > 0


# --- the manifest ------------------------------------------------------------------------------------------------


def test_every_key_that_the_reader_knows_is_on_the_page(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read off the reader itself, while it reads every manifest that is installed."""
    asked = set()

    def raw(self: Table, key: str, default: Any = None, *, stock: Any = Table.raw) -> Any:
        asked.add(key)
        return stock(self, key, default)

    monkeypatch.setattr(Table, "raw", raw)
    for record in host.plugins:
        Manifest.load(record.manifest.path)
    assert {"default_with", "suffix_option", "official", "aggregate", "remote"} <= asked
    written = " ".join(re.findall(r"`([^`]+)`", prose("manifest.md")))
    assert sorted(key for key in asked if not re.search(rf"\b{key}\b", written)) == []


def test_the_rule_of_the_page_is_read_and_holds(host_with: Any) -> None:
    [rule] = [block.text for block in blocks(AUTHORS / "manifest.md") if "[[rule]]" in block.text]
    files = {b.file: b.text for b in blocks(AUTHORS / "tutorial.md") if b.file.startswith("src/")}

    def with_rule(root: Path) -> Path:
        package = root / "wf_plugin_attention_mine"
        package.mkdir(parents=True)
        for name, text in files.items():
            (package / Path(name).name).write_text(text)
        manifest = package / FILE_NAME
        text = manifest.read_text()
        manifest.write_text(text.replace('"inference-only"', '"inference-only", "rewrites-layout"') + rule)
        info = root / "wf_plugin_attention_mine-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: wf-plugin-attention-mine\nVersion: 1.0\n"
        )
        (info / "entry_points.txt").write_text("[wf.plugins]\nattention-mine = wf_plugin_attention_mine\n")
        return root

    host = host_with(with_rule)
    assert host.discovery.plugin("attention-mine").state == "available"
    on_cpu = {"facts": {"device.type": "cpu"}, "device": "h200"}
    with pytest.raises(Refused) as refused:
        host.resolve("wan2.1-t2v-1.3b", {"attention_backend": "float64", "cuda_graph": True}, **on_cpu)
    assert "ACME-1" in {violation.code for violation in refused.value.refusal.violations}
    assert host.resolve("wan2.1-t2v-1.3b", {"attention_backend": "float64"}, **on_cpu).features


# --- the promise -------------------------------------------------------------------------------------------------


def test_the_promise_is_about_this_version() -> None:
    text = page("stability.md")
    assert f"`api = {api.API}`" in text
    assert __version__.startswith("0.") and "wf is at 0.x" in text
