"""The conformance kit finds what is wrong with a plugin: exactly one check fails, and its message can be acted on."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from xml.etree import ElementTree

import attrs
import pytest
import torch

from support.bad_plugins import BAD, BAD_FAMILIES, GOOD
from wf_core.cli import main
from wf_core.testing import FusionConformance
from wf_core.testing.cases import TOY
from wf_core.testing.examination import examine
from wf_core.testing.hosts import record_of


@pytest.fixture
def site(tmp_path, monkeypatch):
    """A folder on the path of this process and of its children; what is imported from it is forgotten afterwards."""
    root = tmp_path / "site"
    root.mkdir()
    monkeypatch.syspath_prepend(str(root))
    monkeypatch.setenv("PYTHONPATH", str(root))
    before = set(sys.modules)
    yield root
    for name in set(sys.modules) - before:
        if name.startswith("wf_plugin_"):
            del sys.modules[name]


@pytest.fixture
def toy_block():
    """Puts back what some plugins patch."""
    from wf_core.testing.toy import model

    owners = (model, model.ToyBlock, torch.nn.LayerNorm, torch.nn.functional)
    kept = {owner: dict(vars(owner)) for owner in owners}
    yield
    for owner, values in kept.items():
        for key, value in values.items():
            if vars(owner)[key] is not value:
                setattr(owner, key, value)


def failures(module):
    results = list(examine(record_of(module), (record_of(TOY),)))
    assert len(results) > 10
    return results, [result for result in results if result.state == "failed"]


def test_the_good_plugin_conforms(site):
    """In processes of their own: what is different about the bad ones is what fails."""
    results, failed = failures(GOOD.write(site, "good"))
    assert failed == []
    skipped = {result.check.name for result in results if result.state == "not applicable"}
    assert skipped == {"every_option_is_checked_at_its_bounds", "ranks_decide_alike"}


def _one(name, bad, found):
    told = [f"{result.check.name} of {result.subject}: {result.message}" for result in found]
    assert [result.check.name for result in found] == [bad.check], told
    assert found[0].subject in ("", name)
    for word in bad.words:
        assert word in found[0].message


@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if not bad.whole])
def test_one_check_fails_and_says_why(site, toy_block, name):
    _one(name, BAD[name], failures(BAD[name].write(site, name))[1])


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name, bad in BAD.items() if bad.whole])
def test_one_check_fails_and_says_why_in_other_processes(site, toy_block, name):
    GOOD.write(site, "neighbour")
    _one(name, BAD[name], failures(BAD[name].write(site, name))[1])


@pytest.mark.parametrize("name", BAD_FAMILIES)
def test_one_check_of_a_family_fails_and_says_why(site, name):
    bad = BAD_FAMILIES[name]
    record = record_of(bad.write(site, name))
    found = [result for result in examine(record, ()) if result.state == "failed"]
    told = [f"{result.check.name}: {result.message}" for result in found]
    assert [result.check.name for result in found] == [bad.check], told
    for word in bad.words:
        assert word in found[0].message


# --- what no examination of a plugin can see: the classes of its tests -----------------------------------------------

CLASSES = """
from wf_core.testing import AttentionProviderConformance, FusionConformance


class TestGood(FusionConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()


class TestOverrides(FusionConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()

    def test_every_reason_is_a_sentence(self):
        pass


class TestDeletes(FusionConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()
    test_every_reason_is_a_sentence = None


class TestPassesAlthoughExpectedToFail(FusionConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()
    expected_to_fail = {"every_reason_is_a_sentence": "there is no reason yet"}


class TestExpectsNoCheckToFail(FusionConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()
    expected_to_fail = {"every_reason_is_a_poem": "they are prose"}


class TestGivesNoReason(FusionConformance):
    plugin = "wf_plugin_fusion_one_word_reason"
    families = ()
    expected_to_fail = {"every_reason_is_a_sentence": " "}


class TestExpectsRightly(FusionConformance):
    plugin = "wf_plugin_fusion_one_word_reason"
    families = ()
    expected_to_fail = {"every_reason_is_a_sentence": "the sentences are being written"}


class TestIsOfAnotherKind(AttentionProviderConformance):
    plugin = "wf_plugin_fusion_good"
    families = ()


class TestBad(FusionConformance):
    plugin = "wf_plugin_fusion_never_counts"
    families = ()
"""
SOME = "nothing_is_taken_away or is_of_the_kind or every_reason_is_a_sentence or asked_for_is_effective"
TAKEN, REASONS = "test_nothing_is_taken_away", "test_every_reason_is_a_sentence"
TOLD = {
    (
        "TestOverrides",
        TAKEN,
    ): "TestOverrides overrides test_every_reason_is_a_sentence: a check is not changed",
    ("TestDeletes", TAKEN): "TestDeletes overrides test_every_reason_is_a_sentence",
    ("TestPassesAlthoughExpectedToFail", REASONS): "does not: take it out of expected_to_fail",
    ("TestExpectsNoCheckToFail", TAKEN): "every_reason_is_a_poem, which is no check",
    ("TestGivesNoReason", TAKEN): "expected_to_fail needs reasons",
    ("TestIsOfAnotherKind", "test_it_is_of_the_kind"): "is of the kind fusion: use its class",
    ("TestBad", "test_asked_for_is_effective"): "the report says inert",
}


def _pytest(folder, text, *arguments):
    """Runs tests in a process of their own; (class, test) -> "" for passed, or what was said."""
    (folder / "test_it.py").write_text(text)
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-p",
        "no:cacheprovider",
        "-c",
        os.devnull,
        "--rootdir",
        str(folder),
    ]
    report = folder / "report.xml"
    done = subprocess.run(
        [*command, "--junitxml", str(report), *arguments, "test_it.py"],
        cwd=folder,
        capture_output=True,
        text=True,
    )
    told = {}
    for case in ElementTree.parse(report).iter("testcase"):
        parts = [f"{part.tag} {part.get('message')} {part.text}" for part in case if part.tag != "properties"]
        told[case.get("classname", "").rpartition(".")[2], case.get("name")] = " ".join(parts)
    return told, done


@pytest.mark.slow
def test_a_class_cannot_take_a_check_away(site, tmp_path):
    for name in ("one-word-reason", "never-counts"):
        BAD[name].write(site, name)
    GOOD.write(site, "good")
    told, done = _pytest(tmp_path, CLASSES, "-k", SOME)
    assert done.returncode == 1
    assert told["TestExpectsRightly", REASONS].startswith("skipped the sentences are being written")
    failed = {test: said for test, said in told.items() if said and not said.startswith("skipped")}
    assert failed.keys() == TOLD.keys()
    for test, words in TOLD.items():
        assert words in failed[test]


@pytest.mark.parametrize("name", ["test_nothing_is_taken_away", "test_it_is_of_the_kind", "record", "case"])
def test_what_guards_the_checks_cannot_be_overridden(name):
    with pytest.raises(TypeError, match=f"TestBad overrides {name}"):
        type("TestBad", (FusionConformance,), {name: None})


# --- wf check -------------------------------------------------------------------------------------------------------


def _wf(capsys, *arguments):
    with pytest.raises(SystemExit) as left:
        main(list(arguments))
    out, err = capsys.readouterr()
    return left.value.code, out, err


def test_wf_check_of_a_good_and_of_a_bad_plugin(site, capsys):
    toy = {"families": '["toy"]'}
    attrs.evolve(GOOD, fields=toy).write(site, "good")
    attrs.evolve(BAD["never-counts"], fields=toy).write(site, "never-counts")

    code, out, err = _wf(capsys, "check", "fusion-good", "--json")
    good = json.loads(out)
    assert (code, err) == (0, "")
    assert (good["schema"], good["plugin"], good["version"]) == (1, "fusion-good", "1.0")
    assert good["implemented"] is good["conforms"] is True
    keys = {"check", "says", "subject", "state", "message", "seconds"}
    assert all(set(check) >= keys for check in good["checks"])
    assert {check["state"] for check in good["checks"]} == {"passed", "not applicable"}
    assert {check["subject"] for check in good["checks"]} == {"", "good"}

    code, out, err = _wf(capsys, "check", "fusion-never-counts", "--json")
    bad = json.loads(out)
    assert (code, bad["implemented"], bad["conforms"]) == (2, True, False)
    (failed,) = [check for check in bad["checks"] if check["state"] == "failed"]
    assert (failed["check"], failed["subject"]) == ("asked_for_is_effective", "never-counts")
    assert err.startswith(
        "wf: fusion-never-counts does not conform: asked_for_is_effective: after the trial request"
    )
    assert len(err.splitlines()) == 1

    code, out, err = _wf(capsys, "check", "fusion-never-counts")
    assert code == 2
    assert "1 failed of" in out


@pytest.mark.slow
def test_wf_check_in_a_process_of_its_own(site):
    attrs.evolve(BAD["claims-exact"], fields={"families": '["toy"]'}).write(site, "claims-exact")
    command = [sys.executable, "-m", "wf_core", "check", "fusion-claims-exact", "--json"]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 2, done.stderr
    failed = {c["check"]: c["message"] for c in json.loads(done.stdout)["checks"] if c["state"] == "failed"}
    assert list(failed) == ["the_claimed_tier_holds"], failed


def test_wf_check_of_what_is_only_declared(capsys):
    code, out, err = _wf(capsys, "check", "execution-compile", "--json")
    told = json.loads(out)
    assert (code, told["implemented"], told["conforms"]) == (2, False, False)
    assert {check["state"] for check in told["checks"]} <= {"passed", "not applicable"}
    assert err == "wf: execution-compile is not implemented: only its manifest was checked\n"


def test_wf_check_of_a_default_outside_its_own_range(site, capsys):
    """The manifest is not even read: the plugin is broken, and the command says why."""
    option = '[[feature.option]]\nname = "strength"\ntype = "int"\nmin = 1\ndefault = 0\ndoc = "How much."\n'
    attrs.evolve(GOOD, rows=option).write(site, "worse")
    code, out, err = _wf(capsys, "check", "fusion-worse", "--json")
    assert code == 2
    assert "its default does not fit: 0 is out of range, expects 1 <= x" in json.loads(out)["error"]
    assert err.startswith("wf: the plugin fusion-worse is broken")


def test_a_plugin_that_ends_the_process_has_not_passed(site, capsys):
    leaves = """
        def begin(self, run):
            import os
            os._exit(0)
        """
    attrs.evolve(GOOD, methods=leaves, fields={"families": '["toy"]'}).write(site, "leaves")
    code, out, _ = _wf(capsys, "check", "fusion-leaves", "--json")
    told = json.loads(out)
    assert (code, told["conforms"]) == (2, False)
    last = told["checks"][-1]
    assert (last["check"], last["state"]) == ("the_checks_come_to_their_end", "failed")
