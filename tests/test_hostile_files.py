"""Checkpoints, weights and outputs that somebody else chose: read within bounds, never waited for, never run."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from support.hostile import SEEDS, examples, mutated, said, wf, within
from support.plugins import write_plugin
from wf_core import BadInput, Host, Refused
from wf_core.checkpoints import checkpoint_hash, load_pipeline
from wf_core.facts import Facts
from wf_core.facts.files import file_facts
from wf_core.facts.safetensors_header import read_header, read_shapes
from wf_core.manifests.declarations import FileDecl
from wf_core.media import check_output_path

# --- safetensors -----------------------------------------------------------------------------------------------------

HEADER = {
    "__metadata__": {"format": "pt"},
    "a.weight": {"dtype": "F32", "shape": [4, 2], "data_offsets": [0, 32]},
    "b.weight": {"dtype": "BF16", "shape": [8], "data_offsets": [32, 48]},
    "c": {"dtype": "I64", "shape": [], "data_offsets": [48, 56]},
}


def weights(path: Path, header: Any, length: int | None = None, data: int = 56) -> Path:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text) if length is None else length) + text + bytes(data))
    return path


def read(path: Path) -> bool:
    """Whether it is read; refused with a line that names the file otherwise."""
    fine: bool | None = True
    for reader in (read_header, read_shapes):
        try:
            with within(5):
                found: Any = reader(path)
        except BadInput as error:
            fine = False if str(path) in said(error) else None
        else:
            json.dumps(found)
    assert fine is not None, "the refusal does not name the file"
    return fine


@examples(400)
@given(seed=SEEDS)
def test_a_damaged_header(tmp_path_factory: pytest.TempPathFactory, seed: int) -> None:
    read(weights(tmp_path_factory.getbasetemp() / "w.safetensors", mutated(HEADER, seed)))


@examples(150)
@given(
    text=st.binary(max_size=60), length=st.none() | st.sampled_from([0, 1, 2**31, 2**40, 2**63, 2**64 - 1])
)
def test_a_header_of_anything(
    tmp_path_factory: pytest.TempPathFactory, text: bytes, length: int | None
) -> None:
    read(weights(tmp_path_factory.getbasetemp() / "w.safetensors", text, length))


def spans(*pairs: list[Any]) -> dict[str, Any]:
    return {f"t{n}": {"dtype": "F32", "shape": [1], "data_offsets": pair} for n, pair in enumerate(pairs)}


def test_what_a_header_may_not_say(tmp_path: Path) -> None:
    file = tmp_path / "w.safetensors"
    assert read(weights(file, HEADER))
    for pairs in ([[0, 40], [32, 56]], [[-8, 56]], [[56, 0], [0, 56]], [[0.0, 56.0]], [[0, 56, 1]], [[0, 2**80]],
                  [["0", "56"]], [[0, True], [1, 56]]):  # fmt: skip
        assert not read(weights(file, spans(*pairs))), pairs
    for shape in ([1e400], [-1], ["8"], [2**80], [[1]], "12", None):
        row = {"dtype": "F32", "shape": shape, "data_offsets": [0, 56]}
        assert not read(weights(file, json.dumps({"a": row}).encode())), shape
    assert not read(weights(file, b"[" * 100_000))
    file.write_bytes(weights(file, HEADER).read_bytes()[:-1])
    assert not read(file)
    for cut in range(9):
        file.write_bytes(bytes(cut))
        assert not read(file)


def not_files(folder: Path) -> list[Path]:
    os.mkfifo(folder / "pipe.safetensors")
    (folder / "loop.safetensors").symlink_to("loop.safetensors")
    (folder / "folder.safetensors").mkdir()
    named = [folder / f"{name}.safetensors" for name in ("pipe", "loop", "folder", "missing", "x" * 300)]
    return [*named, Path("/dev/zero"), Path("/dev/null"), Path("/dev/tty")]


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    declared = FileDecl("lora", (("x", "a", 0),))
    for path in not_files(tmp_path):
        assert not read(path)
        with within(2):
            file_facts(Facts.of({"model.here": True}, "test"), [("f", declared, str(path))])
    (tmp_path / "transformer").mkdir()
    (tmp_path / "pipe.safetensors").rename(tmp_path / "transformer" / "pipe.safetensors")
    with pytest.raises(BadInput, match="no regular file"), within(2):
        checkpoint_hash(tmp_path)


# --- checkpoint directories ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoint(host: Host, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the tiny model whose weights are links to it."""
    return copied(host, tmp_path_factory.mktemp("checkpoint") / "tiny")


def copied(host: Host, folder: Path) -> Path:
    def link(source: str, target: str) -> None:
        os.symlink(source, target) if source.endswith(".safetensors") else shutil.copyfile(source, target)

    return Path(shutil.copytree(host.model_directory("tiny-wan"), folder, copy_function=link))


CONFIGS = [
    "model_index.json",
    "transformer/config.json",
    "vae/config.json",
    "scheduler/scheduler_config.json",
]
CALL = {"height": 64, "width": 64, "num_frames": 9, "num_inference_steps": 4}


def answer(host: Host, folder: Path) -> None:
    with within():
        try:
            plan = host.resolve(folder, {"feature_cache": "teacache", "attention_backend": "auto"}, run=CALL)
        except (BadInput, Refused) as error:
            said(error)
            if isinstance(error, Refused):
                error.refusal.explain(), json.dumps(error.refusal.to_json())
        else:
            plan.explain(), json.dumps(plan.to_json())


@examples(200)
@given(name=st.sampled_from(CONFIGS), seed=SEEDS)
def test_a_damaged_config(host: Host, checkpoint: Path, name: str, seed: int) -> None:
    file = checkpoint / name
    right = file.read_text()
    try:
        file.write_text(json.dumps(mutated(json.loads(right), seed)))
        answer(host, checkpoint)
    finally:
        file.write_text(right)


def index_of(folder: Path, **values: Any) -> None:
    file = folder / "model_index.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def replaced(name: str, make: Callable[[Path], Any]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / name).unlink()
        make(folder / name)

    return damage


def shards(*names: str) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        (folder / "transformer/diffusion_pytorch_model.safetensors").unlink()
        index = {"weight_map": {f"t{n}": name for n, name in enumerate(names)}}
        (folder / "transformer/diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))

    return damage


def enormous(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(1 << 40)


WEIGHTS = "transformer/diffusion_pytorch_model.safetensors"
DAMAGE: dict[str, Callable[[Path], None]] = {
    "an enormous index": replaced("model_index.json", enormous),
    "an enormous config": replaced("transformer/config.json", enormous),
    "an index that is a pipe": replaced("model_index.json", os.mkfifo),
    "an index that is a loop": replaced("model_index.json", lambda path: path.symlink_to(path.name)),
    "an index that never ends": replaced("model_index.json", lambda path: path.symlink_to("/dev/zero")),
    "weights that are a pipe": replaced(WEIGHTS, os.mkfifo),
    "weights that are a folder": replaced(WEIGHTS, os.mkdir),
    "weights that never end": replaced(WEIGHTS, lambda path: path.symlink_to("/dev/zero")),
    "shards above the folder": shards("../../../x.safetensors"),
    "shards anywhere": shards("/etc/hostname"),
    "a shard with a NUL": shards("a\0b"),
    "no shards": shards(),
    "an index of weights that is a pipe": lambda folder: (
        (folder / WEIGHTS).unlink(), os.mkfifo(folder / f"{WEIGHTS}.index.json"))[0],
    "a component above the folder": lambda folder: index_of(folder, **{"../vae": ["diffusers", "X"]}),
    "a component anywhere": lambda folder: index_of(folder, **{"/etc": ["diffusers", "X"]}),
    "a component with a NUL": lambda folder: index_of(folder, **{"a\0b": ["diffusers", "X"]}),
    "a component of half a letter": lambda folder: index_of(folder, **{"\ud800": ["diffusers", "X"]}),
    "a component that is a loop": lambda folder: ((folder / "x").symlink_to("x"), index_of(folder, x=["a", "X"]))[0],
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGE)
def test_a_checkpoint_that_reaches_out_or_never_ends(host: Host, tmp_path: Path, name: str) -> None:
    folder = copied(host, tmp_path / "tiny")
    DAMAGE[name](folder)
    with pytest.raises(BadInput) as refused, within(5):
        host.resolve(folder, {})
    assert str(folder) in said(refused.value)


def test_a_folder_whose_name_is_no_text(host: Host, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = copied(host, tmp_path / "caf\udce9")
    arguments = [
        sys.executable,
        "-m",
        "wf_core",
        "resolve",
        os.fsencode(folder),
        "-s",
        "attention_backend=sdpa",
    ]
    done = subprocess.run(arguments, capture_output=True, timeout=60, env={**os.environ, "PYTHONUTF8": "1"})
    assert done.returncode == 0, done.stderr
    assert b"caf\\udce9" in done.stdout or b"plan " in done.stdout


# --- nothing is run --------------------------------------------------------------------------------------------------


class Canary:
    """Sings when it is unpickled."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_nothing_that_is_named_is_imported_called_or_unpickled(
    host: Host, tmp_path: Path, monkeypatch: Any
) -> None:
    """Modules named by a manifest, a plan and a checkpoint's index, and pickled weights."""
    sings = tmp_path / "sang"
    manifest = (
        'kind = "model-family"\n[family]\nname = "canary"\ntrial = "wf_plugin_canary:boom"\n'
        'transformer_classes = { Canary = "canary" }\n[[model]]\nname = "canary"\nfamily = "canary"\n'
    )
    root = write_plugin(
        tmp_path / "site", "canary", manifest, f"open({str(sings)!r}, 'w')\ndef boom(): pass\n"
    )
    monkeypatch.syspath_prepend(str(root))
    for command in (("list-plugins",), ("resolve", "canary"), ("why", "sdpa", "--model", "canary"),
                    ("show", "canary"),
                    ("run", "canary", "--prompt", "p", "--out", str(tmp_path / "c.txt"))):  # fmt: skip
        wf(*command)
    plan = host.resolve("tiny-wan", {"feature_cache": "teacache"}).to_json()
    plan["features"][0]["plugin"] = "canary"
    with pytest.raises((BadInput, Refused)):
        host.load_plan(json.loads(json.dumps(plan)))
    folder = copied(host, tmp_path / "tiny")
    index_of(folder, transformer=["wf_plugin_canary", "WanTransformer3DModel"])
    host.resolve(folder, {})
    assert "wf_plugin_canary" not in sys.modules and not sings.exists()

    index_of(folder, transformer=["diffusers", "WanTransformer3DModel"])
    for name in ("transformer/diffusion_pytorch_model", "text_encoder/pytorch_model"):
        bad = copied(host, tmp_path / name.partition("/")[0])
        for file in (bad / name).parent.glob("*.safetensors"):
            file.unlink()
        (bad / name).with_suffix(".bin").write_bytes(pickle.dumps(Canary(sings)))
        with pytest.raises(BadInput), within(60):
            load_pipeline(bad)
    assert not sings.exists()


# --- outputs ---------------------------------------------------------------------------------------------------------


WRITING = (
    ("run", "tiny-wan", "--prompt", "p", "--out"),
    ("run", "tiny-wan", "--prompt", "p", "--out", "c.gif", "--report"),
    ("calibrate", "teacache", "tiny-wan", "--out"),
    ("matrix", "tiny-wan", "--html"),
)


def test_what_cannot_be_written_to_is_refused_before_anything_is_computed(
    host: Host, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Host, "discover", lambda *_, **__: host)
    os.mkfifo("pipe.gif")
    Path("loop.gif").symlink_to("loop.gif")
    Path("gone.gif").symlink_to("/proc/nowhere/x")
    Path("full.gif").symlink_to("/dev/full")
    os.mkdir("folder.gif")
    before = sorted(os.listdir())
    for name in (
        "pipe.gif",
        "loop.gif",
        "gone.gif",
        "full.gif",
        "folder.gif",
        "/dev/null",
        "a\0.gif",
        "x" * 300 + ".gif",
        "folder.gif/",
    ):
        with pytest.raises(BadInput) as refused, within(2):
            check_output_path(Path(name))
        said(refused.value)
        if "\0" in name:
            continue
        for command in WRITING:
            assert wf(*command, name)[0] == 2
    assert sorted(os.listdir()) == before
