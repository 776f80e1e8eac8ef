"""What is no base, no request and no checkpoint: one sentence, never an error of Python."""

from __future__ import annotations

import copy
import json
import os
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wf_core.checkpoints import check_device, check_device_name
from wf_core.errors import BadInput, Refused
from wf_core.facts.device import visible_devices
from wf_core.facts.process import process_facts
from wf_core.facts.run import run_facts
from wf_core.host import Host
from wf_core.manifests.manifest import ManifestError
from wf_core.media import check_output_path
from wf_core.sessions.driver import drive
from wf_core.sessions.memory import held_bytes

from .conftest import Site
from .test_cli_list import wf
from .test_manifest import FEATURE, HEAD, OPTION, load

__all__ = ["wf"]


@pytest.fixture
def host(site: Site) -> Host:
    site.family()
    site.cache("cache-a")
    return Host.discover([str(site.folder)])


# --- bases and requests ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("base", [None, b"x", 3, {}, torch.nn.Linear(2, 2), torch.nn.Linear])
def test_what_is_no_base_is_told_so(host: Host, base: Any) -> None:
    for call in (host.facts, lambda base: host.session(base, {}), lambda base: host.resolve(base, {})):
        with pytest.raises(BadInput, match="is no base: give a loaded pipeline"):
            call(base)


@pytest.mark.parametrize("request_", ["teacache", ["a"], 3, {"a"}])
def test_what_is_no_request_is_told_so(host: Host, toy_checkpoint: Path, request_: Any) -> None:
    with pytest.raises(BadInput, match="a request is a mapping"):
        host.resolve(toy_checkpoint, request_)
    with pytest.raises(BadInput, match="run is a mapping"):
        host.resolve(toy_checkpoint, {}, run=request_)


def test_scalars_of_numpy_are_numbers(host: Host, toy_checkpoint: Path) -> None:
    def threshold(value: Any) -> Any:
        return host.resolve(toy_checkpoint, {"a": value}).features[0].option("threshold")

    assert threshold(np.float32(0.5)) == 0.5
    assert threshold({"threshold": np.int64(1)}) == 1.0
    assert threshold({"coefficients": [np.float64(1), np.int8(2)]}) == 0.25
    assert host.resolve(toy_checkpoint, {"a": np.bool_(False)}).features == ()
    assert json.dumps(host.resolve(toy_checkpoint, {"a": np.bool_(True)}).to_json())
    assert run_facts({"height": np.int64(32)}).get("run.height") == 32


@pytest.mark.parametrize("value", [np.array([1, 2]), {"threshold": np.zeros(1)}, [torch.ones(2)]])
def test_an_array_is_refused_in_one_sentence(host: Host, toy_checkpoint: Path, value: Any) -> None:
    with pytest.raises(BadInput, match=r"^a: expects numbers.* of shape .*tolist"):
        host.resolve(toy_checkpoint, {"a": value})


def test_a_value_without_a_bottom_is_refused(host: Host, toy_checkpoint: Path) -> None:
    value: Any = 1
    for _ in range(5000):
        value = [value]
    with pytest.raises(BadInput, match="a: nested too deeply"):
        host.resolve(toy_checkpoint, {"a": value})


def test_one_feature_name_of_two_plugins_is_refused(site: Site, toy_checkpoint: Path) -> None:
    site.family()
    for name in ("cache-a", "cache-b"):
        switch = f'[[switch]]\nname = "{name}"\nfeature = "same"\nform = "flag"\n'
        site.cache(name, feature="same", more=switch)
    host = Host.discover([str(site.folder)])
    with pytest.raises(Refused) as caught:
        host.resolve(toy_checkpoint, {"cache_a": True, "cache_b": True})
    [violation] = [v for v in caught.value.refusal.violations if v.code == "WF-P003"]
    assert (
        violation.reason == "feature same is offered by cache-a and cache-b; block one with WF_BLOCK=cache-a."
    )
    assert "cache_a" in violation.involves
    with pytest.raises(BadInput, match="offered by cache-a and cache-b"):
        host.catalog.feature_plugin("same")
    assert len(host.resolve(toy_checkpoint, {"cache_a": True}).features) == 1


# --- checkpoint directories ------------------------------------------------------------------------------------------


def changed(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def deep(file: Path) -> None:
    file.write_text('{"a": ' + "[" * 100_000 + "]" * 100_000 + "}")


def less_deep(file: Path) -> None:
    file.write_text('{"a": ' + "[" * 200 + "]" * 200 + "}")


DAMAGE: dict[str, tuple[str, Callable[[Path], None], str]] = {
    "a component without a name": ("model_index.json", lambda f: changed(f, **{"": ["a", "B"]}), "component ''"),
    "a component above the folder": ("model_index.json", lambda f: changed(f, **{"../x": ["a", "B"]}), "is no name"),
    "a name too long": ("model_index.json", lambda f: changed(f, **{"x" * 300: ["a", "B"]}), "is missing"),
    "an index without a bottom": ("model_index.json", deep, "model_index.json: nested too deeply"),
    "a config without a bottom": ("transformer/config.json", less_deep, "config.json: nested too deeply"),
    "patches of nothing": ("transformer/config.json", lambda f: changed(f, patch_size=[0, 0, 0]), "patch_size"),
    "patches of text": ("transformer/config.json", lambda f: changed(f, patch_size=["a", 2, 2]), "patch_size"),
    "no frames": ("vae/config.json", lambda f: changed(f, scale_factor_temporal=0), "scale_factor_temporal"),
    "half a pixel": ("vae/config.json", lambda f: changed(f, scale_factor_spatial=0.5), "scale_factor_spatial"),
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_damaged_checkpoint_is_told_by_file_and_key(host: Host, toy_checkpoint: Path, name: str) -> None:
    file, damage, words = DAMAGE[name]
    damage(toy_checkpoint / file)
    with pytest.raises(BadInput) as caught:
        host.resolve(toy_checkpoint, {}, run={"height": 32, "width": 32, "num_frames": 9})
    assert words in str(caught.value)
    assert file.split("/")[0] in str(caught.value) or "folder is missing" in str(caught.value)


def test_a_key_without_a_name_is_only_configuration(host: Host, toy_checkpoint: Path) -> None:
    changed(toy_checkpoint / "model_index.json", **{"": 1})
    assert host.resolve(toy_checkpoint, {}).family == "toy"


def test_a_deep_header_of_weights_is_corrupt(host: Host, toy_checkpoint: Path) -> None:
    text = b'{"a": ' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    file = toy_checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    file.write_bytes(len(text).to_bytes(8, "little") + text)
    with pytest.raises(BadInput, match="not a usable safetensors file"):
        host.resolve(toy_checkpoint, {})


# --- the command line ------------------------------------------------------------------------------------------------

RUN = ("run", "x", "--prompt", "p", "--out", "clip.mp4")
LONG = "x" * 300


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("doctor", "--seconds", "nan"), "not a finite number"),
        (("doctor", "--seconds", "1e400"), "not in the range"),
        ((*RUN, "--seed", "-1"), "not in the range"),
        ((*RUN, "--seed", str(2**63)), "not in the range"),
        ((*RUN, "--fps", "0"), "not in the range"),
        ((*RUN, "--fps", "nan"), "not a finite number"),
        ((*RUN, "--device", "foo"), "device 'foo'"),
        ((*RUN, "--device", "meta"), "device 'meta'"),
        ((*RUN, "--prompt", "\udcff"), "not valid text"),
        ((*RUN, "--out", f"{LONG}.mp4"), "File name too long"),
        ((*RUN, "--out", f"{LONG}/clip.mp4"), "File name too long"),
        ((*RUN, "--report", "/proc/report.json"), "cannot write /proc/report.json"),
        (("resolve", LONG), "neither a directory"),
        (("resolve", "nope", "--family", "nofam"), "no installed plugin provides the model family 'nofam'"),
        (("list-plugins", "--kind", "x"), "is not one of"),
        ((), "no command was given"),
    ],
)
def test_one_line_on_stderr_and_exit_code_2(
    site: Site,
    wf: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    words: str,
) -> None:
    site.family()
    monkeypatch.chdir(tmp_path)
    result = wf(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert result.stderr.count("\n") == 1
    assert [path.name for path in tmp_path.iterdir()] == ["site"]


def test_a_dtype_is_checked_before_anything_is_loaded(
    site: Site, wf: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("wf_core.media.require_writers", lambda: None)
    site.family()
    site.plugin(
        "m",
        'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "far"\nfamily = "toy"\n',
    )
    result = wf("run", "far", "--prompt", "p", "--out", str(tmp_path / "c.gif"), "--dtype", "int4")
    assert (result.exit_code, "dtype 'int4'" in result.stderr) == (2, True)


@pytest.mark.parametrize("device", ["cpu", "cuda", "cuda:1", "mps", "xpu:0"])
def test_devices_that_a_clip_is_made_on(device: str) -> None:
    check_device_name(device)


@pytest.mark.parametrize("device", ["meta", "foo", "cpu:1", "cuda:-1", "cuda:²", "mps", "xpu", "cuda:99"])
def test_devices_that_are_not_here(device: str) -> None:
    if device == "mps" and torch.backends.mps.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(BadInput, match=f"device '{device}'"):
        check_device(device)


def test_an_output_path_is_tried_and_nothing_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = tmp_path / "kept.json"
    kept.write_text("as it was")
    for path in (kept, tmp_path / "new.json", tmp_path / "a" / "b" / "new.json"):
        assert check_output_path(path) == path
    assert [path.name for path in tmp_path.iterdir()] == ["kept.json"]
    assert kept.read_text() == "as it was"
    monkeypatch.setattr(os, "access", lambda *_: True)
    with pytest.raises(BadInput, match="cannot write"):
        check_output_path(Path("/proc/new.json"))


def test_a_digit_that_is_no_number_is_not_read_as_one() -> None:
    assert process_facts(environ={"WORLD_SIZE": "²"}).get("process.world") == 1
    assert process_facts(environ={"WORLD_SIZE": "9" * 5000}).get("process.world") == 1
    assert visible_devices(4, {"CUDA_VISIBLE_DEVICES": "1,²"}) == (1,)


# --- manifests, pipelines, memory -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (f"{FEATURE}{OPTION}min = 5\nmax = 2\n", "no number is in its range 5 <= x <= 2"),
        (f"{FEATURE}{OPTION}above = 2\nmax = 2\n", "no number is in its range"),
        (
            f'{FEATURE}[[switch]]\nname = "s"\nfeature = "f"\nform = "flag"\noff = [{{ a = 1 }}]\n',
            "off takes",
        ),
        (f'{FEATURE}[[switch]]\nname = "s"\nfeature = "f"\nform = "flag"\noff = {{ a = 1 }}\n', "off takes"),
    ],
)
def test_a_manifest_that_no_value_can_satisfy(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ManifestError, match=words):
        load(tmp_path, HEAD + text)


class Pipe:
    """A pipeline as far as driving goes."""

    def __call__(self) -> None:
        """Nothing."""


@pytest.mark.parametrize("make", [copy.copy, copy.deepcopy, pickle.dumps])
def test_a_sessions_pipeline_is_neither_copied_nor_pickled(make: Callable[[Any], Any]) -> None:
    pipe = Pipe()
    make(pipe)
    drive(pipe, None)  # type: ignore[arg-type]
    with pytest.raises(BadInput, match="belongs to a session"):
        make(pipe)


@pytest.mark.filterwarnings("ignore:Sparse")
def test_sparse_tensors_are_counted_by_what_they_hold() -> None:
    dense = torch.eye(4)
    for sparse in (
        dense.to_sparse(),
        dense.to_sparse_csr(),
        dense.to_sparse_csc(),
        dense.to_sparse_bsr((2, 2)),
    ):
        assert held_bytes([[sparse]]) >= 4 * 4
    assert held_bytes([[dense, dense[1:]]]) == 64
    assert held_bytes([[dense.to_mkldnn()]]) == 64 if torch.backends.mkldnn.is_available() else True
