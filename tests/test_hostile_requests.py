"""Requests, settings, variables and presets of anything: an answer, or a refusal that can be read."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile import (
    FACTS,
    SEEDS,
    VALUES,
    examples,
    mutated,
    said,
    wf,
    within,
)
from wf_core import BadInput, Host, Refused
from wf_core.facts.device import visible_devices
from wf_core.facts.process import process_facts
from wf_lib_teacache.presets import HERE as PRESETS
from wf_lib_teacache.settings import settle


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return Path(tmp_path_factory.mktemp("hostile"))


# --- files of a command line -----------------------------------------------------------------------------------------

TEXTS = [
    "", "{", "[]", "null", "\x00", '{"a": NaN}', '{"a": 1, "a": 2}', '{"a": "\\ud800"}', '{"schema": 1e999}',
    "[" * 100_000, '{"a":' * 900 + "1" + "}" * 900, '{"' + "x" * 10**6 + '": 1}',
    '{"schema": 1, "features": [], "hash": ' + "9" * 5000 + "}", '{"schema": 1, "legal": true, "plan": {}}',
    '{"feature_cache": {"algorithm": "' + "x" * 10**6 + '"}}',
]  # fmt: skip
NOT_FILES = ["/dev/zero", ".", "pipe", "loop", "missing/x", "x" * 300, "big.json", "latin.json"]


@pytest.fixture
def one_host(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands take the host that is there: what is fuzzed is not the installed plugins."""
    monkeypatch.setattr(Host, "discover", lambda *_, **__: host)


@pytest.fixture
def odd_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    os.mkfifo("pipe")
    Path("loop").symlink_to("loop")
    with Path("big.json").open("wb") as file:
        file.truncate(1 << 33)
    Path("latin.json").write_bytes(b'{"a": "\xff"}')
    return tmp_path


RUN = ("run", "tiny-wan", "--prompt", "p", "--out", "clip.gif")


@pytest.mark.parametrize(
    "command", [(*RUN, "--plan"), (*RUN, "--load-json"), ("resolve", "tiny-wan", "--load-json")]
)
def test_files_of_a_command_line(one_host: None, odd_files: Path, command: tuple[str, ...]) -> None:
    for number, text in enumerate(TEXTS):
        Path(f"{number}.json").write_text(text)
        assert wf(*command, f"{number}.json")[0] == 2, text[:60]
    for name in NOT_FILES:
        assert wf(*command, name)[0] == 2, name
    assert not Path("clip.gif").exists()


# --- requests --------------------------------------------------------------------------------------------------------

KEYS = [
    "feature_cache", "feature_cache.threshold", "teacache", "teacache.preset", "attention_backend", "goal", "budget",
    "profile", "vae_tile_size", "on_ineligible", "lora", "transformer_gguf", "no_such_key", "", ".", "a.b", "x" * 5000,
]  # fmt: skip


@examples(200)
@given(
    pairs=st.dictionaries(st.sampled_from(KEYS), st.sampled_from(range(len(VALUES))), min_size=1, max_size=4)
)
def test_a_request_of_anything(host: Host, pairs: dict[str, int]) -> None:
    request = {key: VALUES[index] for key, index in pairs.items()}
    told = ""
    with within():
        try:
            plan = host.resolve("tiny-wan", request)
        except (BadInput, Refused) as error:
            said(error)
            if isinstance(error, Refused):
                json.dumps(error.refusal.to_json())
                told = error.refusal.explain()
        else:
            json.dumps(plan.to_json()), plan.explain()
    assert len(told) < 100_000


def test_settings_of_a_command_line(one_host: None) -> None:
    chance = random.Random(0)
    texts = [
        "", "=", "a", "\udcff=1", "a=\udcff", "budget=1" + " " * 100_000 + "x", "a=" + "[" * 100_000, "lora=a\tb",
        'a={"b": 1, "b": 2}', "a=" + "[" * 500 + "]" * 500, "teacache=" + "9" * 5000, "teacache=NaN", "\x1b[2J=1",
    ]  # fmt: skip
    for text in texts:
        wf("resolve", "tiny-wan", "-s", text, "-s", chance.choice(["goal=exact", "a=1", "teacache=0.1"]))
    for more in (
        ("--height", "9" * 4000),
        ("--run", "height=" + "9" * 4000),
        ("--run", "a=\x1b[2J"),
        ("--world", "1" * 30),
    ):
        wf("resolve", "wan2.1-t2v-14b", "--device", "h200", *more)
    for name in ("x" * 100_000, "\udcff", "../../x", "\x1b[2J", ""):
        for command in ("show", "why", "resolve", "check"):
            assert "\x1b" not in wf(command, name)[2]


VARIABLES = [
    "WF_BLOCK", "WF_ONLY", "WF_STRICT", "WORLDFOUNDRY_ATTENTION_BACKEND", "WORLDFOUNDRY_ENABLE_TF32", "COLUMNS",
    "WORLDFOUNDRY_MATMUL_PRECISION", "WORLDFOUNDRY_DETERMINISTIC", "WORLDFOUNDRY_TORCH_COMPILE",
]  # fmt: skip
SETTINGS = [
    "", " ", "1", "x", "\udcff", "9" * 5000, "x" * 100_000, "a," * 50_000, ", ".join(f"n{i}" for i in range(9000)),
    "dist:", "dist:" + "x" * 50_000, "-1", "\x1b[2J", "auto,math",
]  # fmt: skip


@pytest.mark.parametrize("variable", VARIABLES)
def test_variables_of_the_environment(monkeypatch: pytest.MonkeyPatch, host: Host, variable: str) -> None:
    for text in SETTINGS:
        monkeypatch.setenv(variable, text)
        if variable.startswith("WORLDFOUNDRY_"):
            monkeypatch.setattr(Host, "discover", lambda *_, **__: Host(host.discovery, environ=os.environ))
            wf("resolve", "tiny-wan")
        elif text in SETTINGS[4:9:2]:
            wf("list-plugins")
            wf("resolve", "tiny-wan")
    for text in SETTINGS:
        process_facts(environ={"WORLD_SIZE": text})
        visible_devices(8, {"CUDA_VISIBLE_DEVICES": text})


# --- presets ---------------------------------------------------------------------------------------------------------

PRESET = json.loads((PRESETS / "calibrated" / "tiny-wan.json").read_text())


@examples(300)
@given(seed=SEEDS)
def test_a_damaged_preset(folder: Path, seed: int) -> None:
    path = folder / "preset.json"
    path.write_text(json.dumps(mutated(PRESET, seed)))
    with within():
        try:
            found = settle(
                {"preset": str(path)}, FACTS.with_({"request.allow_uncalibrated": True}, source="test")
            )
        except BadInput as error:
            said(error)
        else:
            assert found.first >= 0 and found.last >= 0 and found.threshold > 0


def test_presets_that_are_no_presets(odd_files: Path) -> None:
    for number, text in enumerate(TEXTS):
        Path(f"{number}.json").write_text(text)
    for name in (*NOT_FILES, *(f"{number}.json" for number in range(len(TEXTS))), "a\0b", "\ud800"):
        with pytest.raises(BadInput) as refused, within():
            settle({"preset": name}, FACTS)
        said(refused.value)
