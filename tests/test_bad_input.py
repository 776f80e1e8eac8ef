"""Bad input: one clear line, exit code 2, no traceback, nothing written."""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest
from accelerate.hooks import ModelHook, add_hook_to_module
from diffusers import FirstBlockCacheConfig

from support import models
from wf_core import BadInput, CannotCopy, Refused
from wf_core.checkpoints import check_device


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory):
    directory = tmp_path_factory.mktemp("model") / "tiny"
    models.p1(scheduler=models.unipc()).save_pretrained(directory)
    return directory


@pytest.fixture(scope="module")
def without_torch(tmp_path_factory):
    """The environment of a process in which importing torch fails: a refusal must not need it."""
    folder = tmp_path_factory.mktemp("path")
    (folder / "torch.py").write_text("raise RuntimeError('torch was imported')\n")
    return {**os.environ, "PYTHONPATH": str(folder)}


def wf(*arguments, cwd, env=None):
    return subprocess.run(
        [sys.executable, "-m", "wf_core", *map(str, arguments)],
        cwd=cwd,
        env=env,
        capture_output=True,
        text=True,
        timeout=120,
    )


def run(checkpoint, cwd, *more, model=None, out="out/clip.mp4", env=None):
    return wf("run", model or checkpoint, "--prompt", "x", "--out", out, "--height", 32, "--width", 32,
              "--frames", 9, "--steps", 2, *more, cwd=cwd, env=env)  # fmt: skip


CASES = {
    "unknown key": (["-s", "feature_cash=teacache"], ["feature_cash", "feature_cache"]),
    "no ratios of the model": (["-s", "magcache=true"], ["magcache", "ratios", "tiny"]),
    "the key of another family": (["-s", "vae_tiling=true"], ["vae_tiling", "vae_spatial_tiling"]),
    "wrong type": (["-s", "vae_temporal_chunk_size=many"], ["vae_temporal_chunk_size", "many"]),
    "boolean for a number": (["-s", "vae_temporal_chunk_size=true"], ["vae_temporal_chunk_size"]),
    "out of range": (["-s", "vae_temporal_chunk_size=0"], ["vae_temporal_chunk_size", "0", "1"]),
    "not finite": (["-s", "teacache=NaN"], ["teacache", "finite"]),
    "option without its feature": (["-s", "vae_tile_size=[8,8]"], ["vae_tile_size", "vae_spatial_tiling"]),
    "no preset": (["-s", "feature_cache=teacache"], ["teacache", "coefficients"]),
    "height off the grid": (["--height", "40"], ["40", "32", "48"]),
    "width off the grid": (["--width", "33"], ["33", "32", "48"]),
    "impossible frame count": (["--frames", "10"], ["10", "9", "13"]),
    "no steps": (["--steps", "0"], ["0"]),
    "clip name without a known suffix": (["--out", "clip.txt"], ["clip.txt", ".mp4"]),
    "output below a file": (["--out", "/dev/null/clip.mp4"], ["/dev/null"]),
    "output is a directory": (["--out", "is_a_directory.mp4"], ["is_a_directory.mp4", "directory"]),
    "report cannot be written": (["--report", "/dev/null/report.json"], ["/dev/null"]),
    "setting without a value": (["-s", "feature_cache"], ["feature_cache", "="]),
    "unknown option of the command": (["--stepz", "3"], ["--stepz", "--steps"]),
    "text for a number of the command": (["--steps", "many"], ["--steps", "many"]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_one_line_exit_2_and_nothing_written(checkpoint, tmp_path, without_torch, name):
    more, told = CASES[name]
    (tmp_path / "is_a_directory.mp4").mkdir()
    result = run(checkpoint, tmp_path, *more, env=without_torch)
    assert_refused(result, told)
    assert [path.name for path in tmp_path.iterdir()] == ["is_a_directory.mp4"]


def assert_refused(result, told):
    """Exit code 2, nothing on stdout, and exactly one line on stderr, which says what is wrong."""
    assert result.returncode == 2, result.stderr
    assert result.stdout == ""
    (line,) = (line for line in result.stderr.splitlines() if line.strip())
    for word in told:
        assert word in line


def test_a_process_without_torch_is_what_it_says(tmp_path, without_torch):
    """Or the test above would prove nothing about it."""
    code = [sys.executable, "-c", "import torch"]
    failed = subprocess.run(code, cwd=tmp_path, env=without_torch, capture_output=True, text=True)
    assert "torch was imported" in failed.stderr


def test_no_such_device(checkpoint, tmp_path):
    assert_refused(run(checkpoint, tmp_path, "--device", "cuda:99"), ["cuda:99"])
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("device", ["cuda:99", "quantum", "cuda:first", ""])
def test_a_device_that_torch_cannot_use_is_named(device):
    with pytest.raises(BadInput, match=f"device '{device}'") as refusal:
        check_device(device)
    assert "\n" not in str(refusal.value)
    check_device("cpu")


def test_a_missing_model_directory(checkpoint, tmp_path, without_torch):
    refused = run(checkpoint, tmp_path, model=tmp_path / "nowhere", env=without_torch)
    assert_refused(refused, ["nowhere"])


def test_a_directory_that_is_no_checkpoint(checkpoint, tmp_path, without_torch):
    (tmp_path / "empty").mkdir()
    refused = run(checkpoint, tmp_path, model=tmp_path / "empty", env=without_torch)
    assert_refused(refused, ["empty", "model_index.json"])


@pytest.mark.parametrize("damage", ["truncated", "not json", "length too large"])
def test_a_corrupt_safetensors_header(tmp_path, without_torch, damage):
    directory = tmp_path / "tiny"
    models.p1().save_pretrained(directory)
    file = directory / "transformer" / "diffusion_pytorch_model.safetensors"
    data = bytearray(file.read_bytes())
    if damage == "truncated":
        data = data[:6]
    elif damage == "not json":
        data[8:12] = b"@@@@"
    else:
        data[0:8] = (2**40).to_bytes(8, "little")
    file.write_bytes(bytes(data))
    refused = run(directory, tmp_path, env=without_torch)
    assert_refused(refused, ["diffusion_pytorch_model.safetensors"])
    assert not (tmp_path / "out").exists()


def test_json_on_refusal_is_one_object_on_stdout(checkpoint, tmp_path):
    result = wf("resolve", checkpoint, "-s", "feature_cash=teacache", "--json", cwd=tmp_path)
    assert result.returncode == 2
    refusal = json.loads(result.stdout)
    assert refusal["legal"] is False
    assert "feature_cash" in json.dumps(refusal["violations"])


def test_a_base_with_accelerate_hooks_is_refused(host):
    pipe = models.p1()
    add_hook_to_module(pipe.transformer.blocks[0], ModelHook())
    with pytest.raises((CannotCopy, Refused), match=r"accelerate|_hf_hook"):
        host.session(pipe, {})


def test_a_base_with_a_diffusers_cache_is_refused(host):
    pipe = models.p1()
    pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=0.1))
    with pytest.raises((CannotCopy, Refused), match="hook"):
        host.session(pipe, {})
    pipe.transformer.disable_cache()
    with host.session(pipe, {}):
        pass


def test_a_base_with_cpu_offload_is_refused(host):
    pipe = models.p1()
    pipe.transformer._hf_hook = ModelHook()
    with pytest.raises((CannotCopy, Refused), match=r"accelerate|_hf_hook"):
        host.session(pipe, {})


def test_a_model_of_no_installed_family_is_refused_by_name(host):
    with pytest.raises(Refused, match=r"WF-M002 .* the model family of LTXVideoTransformer3DModel"):
        host.session(models.ltx(), {"attention_backend": "sdpa"})


def test_an_argument_of_the_call_that_is_given_twice(tmp_path):
    one = ("resolve", "wan2.1-t2v-1.3b", "--run", "height=480", "--width", 832, "--height")
    assert wf(*one, 480, cwd=tmp_path).returncode == 0
    twice = wf(*one, 496, cwd=tmp_path)
    assert (twice.returncode, twice.stderr) == (2, "wf: height is set twice: 480 and 496\n")
