"""The commands that only look: what they print, their exit codes, and that they import neither torch nor plugins."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wf_core import api
from wf_core.cli import COMMANDS, main
from wf_core.cli.settings import collect_settings, parse_settings, parse_value
from wf_core.errors import BadInput
from wf_core.manifests.vocabulary import HOST_API

from .conftest import Site

PRESET = ["calibrate", "good", "x", "--out", "preset.json"]
RAISES = "raise RuntimeError('must not be imported')\n"


@pytest.fixture
def wf(site: Site, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a command in this process with only the test's plugins on the path; returns the result."""
    for name in ("WF_BLOCK", "WF_ONLY", "WF_STRICT", "WF_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(site.folder)])

    def run(*arguments: str, **environ: str) -> Result:
        return CliRunner().invoke(main, list(arguments), env=environ, catch_exceptions=False)

    return run


def six_ways(site: Site) -> None:
    """A good plugin and the six faults that a listing must survive."""
    site.family()
    site.cache("cache-good")
    site.cache("cache-raises", RAISES)
    site.cache("cache-twice", distribution="vendor-a")
    site.metadata("vendor-b", "cache-twice = toyplug_cache_twice")
    site.cache("cache-new", api=2)
    site.cache("cache-blocked", RAISES)
    stale = site.folder / "src"
    Site(stale).metadata("wf-plugin-cache-good", "cache-good = toyplug_cache_good", "0.1", kind="egg-info")
    site.plugin("cache-invalid", "schema = 1\napi = 1\nname = 5\n")


def test_the_listing_survives_every_fault(site: Site, wf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    six_ways(site)
    monkeypatch.setattr(sys, "path", [str(site.folder), str(site.folder / "src")])
    result = wf("list-plugins", "--json", WF_BLOCK="cache-blocked")
    assert result.exit_code == 0
    assert result.stderr == ""
    listing = json.loads(result.stdout)
    assert listing["schema"] == 1
    assert listing["host"]["api"] == 1
    plugins = {(plugin["name"], plugin["distribution"]): plugin for plugin in listing["plugins"]}
    assert {key[0]: plugin["state"] for key, plugin in plugins.items()} == {
        "cache-blocked": "blocked",
        "cache-good": "available",
        "cache-invalid": "broken",
        "cache-new": "incompatible",
        "cache-raises": "available",
        "cache-twice": "ambiguous",
        "toy": "available",
    }
    assert len(plugins) == 8
    assert [plugin["name"] for plugin in listing["plugins"]] == sorted(key[0] for key in plugins)
    good = plugins["cache-good", "wf-plugin-cache-good"]
    for key in (
        "name",
        "distribution",
        "version",
        "api",
        "kind",
        "state",
        "reason",
        "location",
        "features",
        "switches",
    ):
        assert key in good
    assert good["features"] == [
        {"name": "good", "kind": "feature-cache", "tier": "approximate", "state": "available", "reason": ""}
    ]
    assert good["switches"] == ["feature_cache", "good"]
    assert "0.1" in good["notes"][0]
    assert not [name for name in sys.modules if name.startswith("toyplug_")]


def test_the_text_says_the_same(site: Site, wf: Any) -> None:
    six_ways(site)
    result = wf("list-plugins", WF_BLOCK="cache-blocked")
    assert result.exit_code == 0
    for words in (
        "cache-good",
        "blocked: WF_BLOCK names cache-blocked",
        "API 2",
        "name must be text",
        "vendor-a",
    ):
        assert words in result.stdout


def test_kind_filters(site: Site, wf: Any) -> None:
    site.family()
    site.cache("cache-good")
    names = [
        p["name"]
        for p in json.loads(wf("list-plugins", "--json", "--kind", "model-family").stdout)["plugins"]
    ]
    assert names == ["toy"]
    assert wf("list-plugins", "--kind", "cache").exit_code == 2


def test_strict_lists_everything_and_ends_with_2(site: Site, wf: Any) -> None:
    six_ways(site)
    result = wf("list-plugins", "--json", WF_STRICT="1")
    assert result.exit_code == 2
    assert len(json.loads(result.stdout)["plugins"]) == 8
    assert "cache-invalid is broken" in result.stderr
    assert result.stderr.count("\n") == 1
    assert wf("list-plugins", WF_STRICT="1", WF_BLOCK="cache-twice,cache-invalid").exit_code == 0


def test_an_unknown_name_to_block_is_told_beside_the_listing_and_stops_other_commands(
    site: Site, wf: Any
) -> None:
    site.cache("cache-good")
    for strict, code in (("0", 0), ("1", 2)):
        result = wf("list-plugins", "--json", WF_BLOCK="cache-god", WF_STRICT=strict)
        assert result.exit_code == code
        assert [plugin["state"] for plugin in json.loads(result.stdout)["plugins"]] == ["available"]
        assert "WF_BLOCK names 'cache-god'" in result.stderr
        assert "did you mean cache-good" in result.stderr
        assert result.stderr.count("\n") == 1
    for arguments in (["show", "good"], ["doctor"], ["resolve", "x", "--family", "toy"]):
        result = wf(*arguments, WF_ONLY="cache-god")
        assert (result.exit_code, result.stdout) == (2, "")
        assert "did you mean cache-good" in result.stderr


def test_strict_stops_every_command_while_a_plugin_is_broken(site: Site, wf: Any) -> None:
    site.family()
    site.cache("cache-good")
    site.metadata("gone", "gone = toyplug_gone")
    for arguments in (["show", "good"], ["resolve", "x", "--family", "toy"], PRESET):
        result = wf(*arguments, WF_STRICT="1")
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.startswith("wf: WF_STRICT: gone is broken: ")
        assert result.stderr.count("\n") == 1
    assert wf("show", "good").exit_code == 0
    assert wf("resolve", "x", "--family", "toy", WF_STRICT="1", WF_BLOCK="gone").exit_code == 0


def test_the_strict_doctor_tells_what_it_has_found_and_ends_with_2(site: Site) -> None:
    site.cache("cache-raises", RAISES)
    done = in_a_process(site, "doctor", "--json", WF_ONLY="cache-raises", WF_STRICT="1")
    assert done.returncode == 2
    [plugin] = [p for p in json.loads(done.stdout)["plugins"] if p["name"] == "cache-raises"]
    assert plugin["state"] == "broken"
    assert done.stderr.startswith("wf: WF_STRICT: cache-raises is broken: ")
    assert done.stderr.count("\n") == 1
    assert in_a_process(site, "doctor", WF_ONLY="cache-raises").returncode == 0


def test_no_plugins(wf: Any) -> None:
    assert wf("list-plugins").stdout == "no plugins are installed\n"
    assert json.loads(wf("list-plugins", "--json").stdout)["plugins"] == []


# --- show and resolve ----------------------------------------------------------------------------------------------


def test_show_tells_everything_that_is_declared(site: Site, wf: Any) -> None:
    more = '[[feature.condition]]\nfact = "device.type"\neq = "cuda"\nreason = "needs CUDA"\n'
    site.cache("cache-good", RAISES, more=more)
    text = wf("show", "good").stdout
    for words in (
        "approximate",
        "0 < x <= 1",
        "0.25",
        "needs CUDA",
        "skipped >= 1",
        "skips-blocks@stack",
        "feature_cache",
    ):
        assert words in text
    [feature] = json.loads(wf("show", "cache-good", "--json").stdout)["features"]
    assert feature["options"][0]["range"] == "0 < x <= 1"
    assert feature["state"] == "available"
    result = wf("show", "goood")
    assert result.exit_code == 2
    assert "did you mean good" in result.stderr


def test_resolve_a_directory(site: Site, wf: Any, toy_checkpoint: Path) -> None:
    site.family()
    site.cache("cache-good", RAISES)
    result = wf(
        "resolve", str(toy_checkpoint), "-s", "feature-cache=good", "-s", "good.threshold=0.5", "--json"
    )
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert answer["legal"] is True
    assert answer["plan"]["features"][0]["options"]["threshold"] == 0.5
    assert set(answer) == {"schema", "legal", "plan", "unknown", "warnings", "not_activatable"}
    assert (
        "good (feature-cache of cache-good)" in wf("resolve", str(toy_checkpoint), "-s", "good=true").stdout
    )


def test_resolve_refuses_with_every_reason(site: Site, wf: Any, toy_checkpoint: Path) -> None:
    site.family()
    site.cache("cache-a")
    site.cache("cache-b")
    arguments = [
        "resolve",
        str(toy_checkpoint),
        "-s",
        "a=true",
        "-s",
        "b=true",
        "--height",
        "100",
        "--run",
        "num_frames=80",
    ]
    result = wf(*arguments, "--json")
    assert result.exit_code == 2
    answer = json.loads(result.stdout)
    assert answer["legal"] is False
    assert [v["code"] for v in answer["violations"]] == ["WF-G001", "WF-G002", "WF-C001"]
    assert result.stderr.count("\n") == 1
    result = wf(*arguments)
    assert result.exit_code == 2
    assert result.stderr.startswith("wf: refused: WF-G001 height 100 is not a multiple of 16")
    assert result.stderr.count("\n") == 1
    for code in ("WF-G001", "WF-G002", "WF-C001"):
        assert code in result.stdout


def test_resolve_a_registered_model_and_an_id(site: Site, wf: Any, toy_checkpoint: Path) -> None:
    site.family()
    text = (
        'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "tiny"\nfamily = "toy"\n'
        f'path = "{toy_checkpoint}"\n[model.defaults]\nheight = 64\ndtype = "bfloat16"\n'
    )
    site.plugin("m", text)
    assert wf("resolve", "tiny").exit_code == 0
    assert wf("resolve", "Tiny", "--height", "65").exit_code == 2
    assert wf("resolve", "some/id", "--family", "toy").exit_code == 0
    result = wf("resolve", "tinny")
    assert result.exit_code == 2
    assert "did you mean tiny" in result.stderr
    assert wf("resolve", "/no/such/directory").exit_code == 2


def test_resolve_asks_no_plugin_where_a_models_files_are(site: Site, wf: Any) -> None:
    site.family()
    text = 'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "far"\nfamily = "toy"\n'
    site.plugin("m", text, RAISES)
    assert wf("resolve", "far").exit_code == 0


def test_a_model_of_no_installed_family_is_refused_by_its_classes(
    site: Site, wf: Any, toy_checkpoint: Path
) -> None:
    site.cache("cache-good")
    result = wf("resolve", str(toy_checkpoint))
    assert result.exit_code == 2
    assert "no installed plugin provides the model family of ToyTransformer." in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["resolve", "x", "--family", "toy", "-s", "nonsense"], "expected KEY=VALUE"),
        (["resolve", "x", "--family", "toy", "-s", "a=0", "-s", "a=false"], "set twice: 0 and false"),
        (["resolve", "x", "--family", "toy", "--load-json", "/no/such/file"], "cannot be read"),
        (["resolve", "x", "--family", "toy", "--run", "hight=4"], "did you mean height"),
        (["resolve"], "Missing argument"),
        (["list-plugin"], "did you mean list-plugins"),
        (["list-plugins", "--jsn"], "No such option"),
    ],
)
def test_bad_input_is_exit_code_2_without_a_traceback(
    site: Site, wf: Any, arguments: list[str], words: str
) -> None:
    site.family()
    site.cache("cache-good")
    result = wf(*arguments)
    assert result.exit_code == 2
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ("god=1", "did you mean good"),
        ("good=NaN", "finite"),
        ("good=2", "out of range"),
        ("good=0", "0.0 is out of range"),
        ("vae_tiles=true", "Use toy_tiles."),
    ],
)
def test_a_refusal_is_one_line_on_stderr_and_all_of_it_on_stdout(
    site: Site, wf: Any, setting: str, words: str
) -> None:
    site.family()
    site.cache("cache-good")
    result = wf("resolve", "x", "--family", "toy", "-s", setting)
    assert result.exit_code == 2
    assert words in result.stderr
    assert words in result.stdout
    assert result.stderr.startswith("wf: refused: ")
    assert result.stderr.count("\n") == 1


def test_a_fault_of_the_host_is_exit_code_1(wf: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(**_: Any) -> None:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("wf_core.cli.list_plugins.discover", fail)
    result = wf("list-plugins")
    assert result.exit_code == 1
    assert "ZeroDivisionError: oh" in result.stderr
    assert "Traceback" not in result.stderr
    assert "Traceback" in wf("list-plugins", WF_DEBUG="1").stderr


# --- settings --------------------------------------------------------------------------------------------------------


def test_settings_are_json_literals_or_text(tmp_path: Path) -> None:
    assert [parse_value(text) for text in ("1", "true", "[1, 2]", "0.5", '"1"', "a b", "")] == [
        1, True, [1, 2], 0.5, "1", "a b", "",
    ]  # fmt: skip
    assert parse_value("NaN") == "NaN"
    assert parse_settings(["a=b=c", "x.y=1"]) == {"a": "b=c", "x.y": 1}
    with pytest.raises(BadInput, match="set twice"):
        parse_settings(["feature-cache=a", "feature_cache=b"])
    file = tmp_path / "load.json"
    file.write_text('{"feature-cache": "a", "compile": true}')
    assert collect_settings(["feature_cache=b"], file) == {"compile": True, "feature_cache": "b"}
    file.write_text("[1]")
    with pytest.raises(BadInput, match="expected a JSON object"):
        collect_settings([], file)


# --- processes -------------------------------------------------------------------------------------------------------


def in_a_process(
    site: Site, *arguments: str, after: str = "", **environ: str
) -> subprocess.CompletedProcess[str]:
    """Runs ``wf`` in a fresh interpreter that has the test's plugins first on its path, then ``after``."""
    code = (
        "import sys\nfrom wf_core.cli import main\n"
        f"try:\n    main({list(arguments)!r})\nexcept SystemExit as end:\n    code = end.code\n"
        f"{after}\nsys.exit(code)\n"
    )
    path = os.pathsep.join([str(site.folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path, **environ}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


LOADED = (
    "heavy = {'torch', 'diffusers', 'transformers', 'numpy', 'rich', 'pluggy'} & set(sys.modules)\n"
    "plugins = [name for name in sys.modules if name.startswith('toyplug_')]\n"
    "print('LOADED', sorted(heavy), plugins, file=sys.stderr)"
)


def test_b69_listing_and_help_import_no_plugin_and_nothing_heavy(site: Site) -> None:
    marker = site.folder / "marks"
    marker.mkdir()
    for number in range(30):
        slow = "import time; time.sleep(2)\n" if number == 3 else ""
        site.cache(f"cache-{number}", f"{slow}open({str(marker)!r} + '/{number}', 'w').close()\n")
    for arguments in (["list-plugins", "--json"], ["--help"], ["--version"], ["show", "7"]):
        done = in_a_process(site, *arguments, after=LOADED, WF_ONLY="cache-7")
        assert done.returncode == 0, done.stderr
        assert "LOADED [] []" in done.stderr
    assert not list(marker.iterdir())


def test_b67_the_doctor_probes_imports_in_a_child_with_a_limit(site: Site) -> None:
    site.cache("cache-good", "print('hello from a plugin')\n")
    site.cache("cache-raises", RAISES)
    site.cache("cache-exits", "import os\nos._exit(7)\n")
    site.cache("cache-slow", "import time\ntime.sleep(60)\n")
    names = "cache-good,cache-raises,cache-exits,cache-slow"
    done = in_a_process(site, "doctor", "--json", "--seconds", "1.5", after=LOADED, WF_ONLY=names)
    assert done.returncode == 0, done.stderr
    assert "LOADED [] []" in done.stderr
    answer = json.loads(done.stdout)
    probed = {plugin["name"]: (plugin["state"], plugin["reason"]) for plugin in answer["plugins"]}
    assert probed["cache-good"] == ("available", "")
    assert probed["cache-raises"][0] == "broken"
    assert "RuntimeError: must not be imported" in probed["cache-raises"][1]
    assert probed["cache-exits"] == ("broken", "its import ends the process with exit code 7")
    assert probed["cache-slow"] == ("broken", "its import takes longer than 1.5 s")
    assert answer["facts"]["process.world"] == 1


def test_every_command_is_loaded_by_its_name_only() -> None:
    code = (
        "import sys\nfrom wf_core.cli import main\nimport click\n"
        "main.get_command(click.Context(main), 'show')\n"
        "print([name for name in sys.modules if name.startswith('wf_core.cli.')])\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout
    assert "wf_core.cli.show" in loaded
    assert "wf_core.cli.list_plugins" not in loaded
    assert "wf_core.cli.doctor" not in loaded
    assert "show" in COMMANDS


def test_the_api_number_is_one_number() -> None:
    assert api.API == HOST_API


def test_a_feature_that_this_machine_cannot_run_is_listed_with_the_reason(site: Site, wf: Any) -> None:
    condition = """
[[feature.condition]]
fact = "package.no-such-package-anywhere"
present = true
code = "WF-X001"
reason = "it needs no-such-package-anywhere, which is not installed."
"""
    site.family()
    site.cache("cache-needy", RAISES, more=condition)
    plugin = json.loads(wf("list-plugins", "--json", "--kind", "feature-cache").stdout)["plugins"][0]
    (found,) = plugin["features"]
    assert (plugin["state"], found["state"]) == ("available", "unavailable")
    assert found["reason"] == "it needs no-such-package-anywhere, which is not installed."
    text = " ".join(wf("list-plugins").stdout.split())
    assert "unavailable (it needs no-such-package-anywhere, which is not installed): needy" in text
