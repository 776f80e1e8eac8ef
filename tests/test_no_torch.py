"""Judging a request needs no torch, wakes no CUDA, runs no plugin's code and reads no weights.

`test_boundaries` shows that nothing imports torch on the way; here the whole command runs where it cannot.
"""

from __future__ import annotations

import json
import math
import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from wf_core import Host, Refused

# What is run first in the process: nothing heavy is there, and a plugin's code is an error wherever it is imported.
NOTHING_HEAVY = """
import sys
from importlib.machinery import SourceFileLoader

HEAVY = {"torch", "numpy", "diffusers", "transformers", "accelerate"}


class Absent:
    @staticmethod
    def find_spec(name, path=None, target=None):
        if name.partition(".")[0] in HEAVY:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def exec_module(self, module):
    if module.__name__.startswith("wf_plugin_"):  # looking for the module is allowed, to find its manifest
        raise SystemExit(f"the code of {module.__name__} was imported")
    executed(self, module)


executed, SourceFileLoader.exec_module = SourceFileLoader.exec_module, exec_module
sys.meta_path.insert(0, Absent)
"""

# torch is there, and everything that would make a CUDA context or ask the driver through torch is an error.
NO_CUDA_INIT = """
import torch


def asked(*args, **kwargs):
    raise SystemExit("CUDA was asked through torch")


for place, names in {
    torch.cuda: ["init", "_lazy_init", "is_available", "device_count", "current_device", "get_device_properties"],
    torch._C: ["_cuda_init", "_cuda_getDeviceCount"],
}.items():
    for name in names:
        if hasattr(place, name):
            setattr(place, name, asked)
"""
COMMAND = "from wf_core.cli import main\nmain()\n"
REQUEST = ["-s", "attention_backend=auto", "-s", "feature_cache=teacache", "-s", "vae_temporal_chunk_size=2"]
REFUSED = ["-s", "cuda_graph=true", "-s", "compile=true", "-s", "compile_mode=reduce-overhead"]


def wf(before: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    program = [sys.executable, "-c", before + COMMAND, *arguments]
    return subprocess.run(program, capture_output=True, text=True, timeout=120)


# --- a checkpoint of the size of Wan 2.1 14B --------------------------------------------------------------------------

DIM, FEED_FORWARD, LAYERS, SHARDS = 5120, 13824, 40, 6
CONFIG = {
    "_class_name": "WanTransformer3DModel",
    "num_layers": LAYERS,
    "num_attention_heads": 40,
    "attention_head_dim": 128,
    "in_channels": 16,
    "out_channels": 16,
    "ffn_dim": FEED_FORWARD,
    "freq_dim": 256,
    "text_dim": 4096,
    "patch_size": [1, 2, 2],
    "cross_attn_norm": True,
    "qk_norm": "rms_norm_across_heads",
    "eps": 1e-6,
    "rope_max_seq_len": 1024,
}


def linear(name: str, out: int, size: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (out, size), f"{name}.bias": (out,)}


def tensors() -> dict[str, tuple[int, ...]]:
    """The names and shapes of the published transformer."""
    embedder = "condition_embedder"
    found: dict[str, tuple[int, ...]] = {
        "scale_shift_table": (1, 2, DIM),
        "patch_embedding.weight": (DIM, 16, 1, 2, 2),
        "patch_embedding.bias": (DIM,),
        **linear(f"{embedder}.time_embedder.linear_1", DIM, 256),
        **linear(f"{embedder}.time_embedder.linear_2", DIM, DIM),
        **linear(f"{embedder}.time_proj", 6 * DIM, DIM),
        **linear(f"{embedder}.text_embedder.linear_1", DIM, 4096),
        **linear(f"{embedder}.text_embedder.linear_2", DIM, DIM),
        **linear("proj_out", 64, DIM),
    }
    for block in (f"blocks.{number}" for number in range(LAYERS)):
        found[f"{block}.scale_shift_table"] = (1, 6, DIM)
        found.update({f"{block}.norm2.weight": (DIM,), f"{block}.norm2.bias": (DIM,)})
        for attention in ("attn1", "attn2"):
            for name in ("to_q", "to_k", "to_v", "to_out.0"):
                found.update(linear(f"{block}.{attention}.{name}", DIM, DIM))
            for name in ("norm_q", "norm_k"):
                found[f"{block}.{attention}.{name}.weight"] = (DIM,)
        found.update(linear(f"{block}.ffn.net.0.proj", FEED_FORWARD, DIM))
        found.update(linear(f"{block}.ffn.net.2", DIM, FEED_FORWARD))
    return found


def write_shards(folder: Path) -> None:
    """Safetensors files with their headers; the data is a hole."""
    names = list(tensors().items())
    share = math.ceil(len(names) / SHARDS)
    where = {}
    for number in range(SHARDS):
        file = f"diffusion_pytorch_model-{number + 1:05}-of-{SHARDS:05}.safetensors"
        header, end = {}, 0
        for name, shape in names[number * share : (number + 1) * share]:
            start, end = end, end + 2 * math.prod(shape)
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, end]}
            where[name] = file
        text = json.dumps(header).encode()
        (folder / file).write_bytes(struct.pack("<Q", len(text)) + text)
        os.truncate(folder / file, 8 + len(text) + end)
    index = {"metadata": {}, "weight_map": where}
    (folder / "diffusion_pytorch_model.safetensors.index.json").write_text(json.dumps(index))


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A pipeline directory with 28 GB of transformer in sparse files, and the VAE of tiny-wan's size."""
    root: Path = tmp_path_factory.mktemp("hub") / "Wan2.1-T2V-14B-Diffusers"
    configs = {
        "model_index.json": {
            "_class_name": "WanPipeline",
            "_diffusers_version": "0.42.1",
            "scheduler": ["diffusers", "UniPCMultistepScheduler"],
            "transformer": ["diffusers", "WanTransformer3DModel"],
            "vae": ["diffusers", "AutoencoderKLWan"],
        },
        "scheduler/scheduler_config.json": {"_class_name": "UniPCMultistepScheduler", "flow_shift": 3.0},
        "transformer/config.json": CONFIG,
        "vae/config.json": {"_class_name": "AutoencoderKLWan", "base_dim": 96, "z_dim": 16},
    }
    for name, value in configs.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(value))
    write_shards(root / "transformer")
    header = json.dumps({"a": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    vae = root / "vae" / "diffusion_pytorch_model.safetensors"
    vae.write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return root


def weights(root: Path) -> list[Path]:
    return sorted(root.rglob("*.safetensors"))


# --- the process ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["a profile", "a directory", "tiny-wan"])
def model(request: pytest.FixtureRequest, checkpoint: Path) -> list[str]:
    """The arguments that name a model."""
    return {
        "a profile": ["wan2.1-t2v-14b", "--device", "h200"],
        "a directory": [str(checkpoint), "--device", "h200"],
        "tiny-wan": ["tiny-wan"],
    }[request.param]


@pytest.mark.parametrize("before", [NOTHING_HEAVY, NO_CUDA_INIT], ids=["no torch", "no CUDA"])
def test_a_request_is_judged(before: str, model: list[str]) -> None:
    done = wf(before, "resolve", *model, *REQUEST, "--json")
    assert done.returncode == 0, done.stderr
    plan = json.loads(done.stdout)["plan"]
    assert [feature["name"] for feature in plan["features"]].count("teacache") == 1


@pytest.mark.parametrize("before", [NOTHING_HEAVY, NO_CUDA_INIT], ids=["no torch", "no CUDA"])
def test_a_refusal_is_explained(before: str, model: list[str]) -> None:
    done = wf(before, "resolve", *model, *REFUSED)
    assert done.returncode == 2, done.stderr
    assert "WF-C015" in done.stdout and "what to change" in done.stdout


def test_the_guards_are_what_they_say() -> None:
    for name in ("torch", "numpy", "diffusers", "transformers"):
        assert "ModuleNotFoundError" in wf(f"{NOTHING_HEAVY}\nimport {name}\n").stderr
    assert "was imported" in wf(f"{NOTHING_HEAVY}\nimport wf_plugin_wan\n").stderr
    assert "CUDA was asked" in wf(f"{NO_CUDA_INIT}\ntorch.cuda.is_available()\n").stderr
    assert "CUDA was asked" in wf(f"{NO_CUDA_INIT}\ntorch.zeros(1, device='cuda')\n").stderr


# --- what is read ---------------------------------------------------------------------------------------------------


def bytes_read() -> int:
    """What this process has read by now, from files and pipes, by the kernel's count."""
    return int(Path("/proc/self/io").read_text().split("rchar:")[1].split()[0])


def counted(call: Callable[[], object]) -> int:
    before = bytes_read()
    call()
    return bytes_read() - before


def first_bytes(file: Path, count: int) -> bytes:
    with file.open("rb") as opened:
        return opened.read(count)


def header_bytes(file: Path) -> int:
    return 8 + int(struct.unpack("<Q", first_bytes(file, 8))[0])


def test_the_checkpoint_is_as_large_as_it_looks(checkpoint: Path) -> None:
    files = weights(checkpoint / "transformer")
    assert len(files) == SHARDS
    assert sum(file.stat().st_size for file in files) > 28e9
    assert sum(file.stat().st_blocks * 512 for file in files) < 1e6


def test_the_facts_of_28_gb_are_those_of_the_headers(checkpoint: Path, host: Host) -> None:
    facts = host.facts(checkpoint, device="h200")
    assert facts.get("model.family") == "wan"
    assert facts.get("model.parameters_bytes") == sum(2 * math.prod(shape) for shape in tensors().values())
    assert (facts.get("model.dtype"), facts.get("model.layers")) == ("bfloat16", LAYERS)


def test_28_gb_are_judged_within_a_second(checkpoint: Path, host: Host) -> None:
    taken = []
    for _ in range(3):
        start = time.perf_counter()
        host.resolve(checkpoint, {"feature_cache": "teacache"}, device="h200")
        taken.append(time.perf_counter() - start)
    assert min(taken) < 1


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="the kernel does not count reads")
def test_only_headers_are_read(checkpoint: Path, host: Host) -> None:
    host.resolve("wan2.1-t2v-14b", {}, device="h200")  # what is read once per host is read now
    headers = sum(map(header_bytes, weights(checkpoint)))
    configs = sum(file.stat().st_size for file in checkpoint.rglob("*.json"))
    buffers = 64 * 1024 * len(weights(checkpoint))
    read = counted(lambda: host.resolve(checkpoint, {"feature_cache": "teacache"}, device="h200"))
    assert headers < read < headers + configs + buffers < 1e6

    def refused() -> None:
        with pytest.raises(Refused):
            host.resolve(checkpoint, {"cuda_graph": True, "feature_cache": "teacache"}, device="h200")

    assert counted(refused) < headers + configs + buffers
    assert counted(lambda: first_bytes(weights(checkpoint)[0], 10**7)) > 1e6  # the count is one
