"""Tiny plugins, written to a folder with metadata as an installer would write them."""

from __future__ import annotations

import json
import struct
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

CACHE_MANIFEST = """
schema = 1
name = "{name}"
api = {api}
kind = "feature-cache"
summary = "a cache for tests"

[[feature]]
name = "{feature}"
tier = "approximate"
tolerance = "none: only for tests"
slot = "feature-cache"
seams = ["stack"]
effects = ["skips-blocks@stack", "host-state@stack"]
families = ["toy"]
evidence = [{{ counter = "skipped", at_least = 1 }}]
select = [{{ switch = "feature_cache", values = ["{feature}"] }}]
[[feature.option]]
name = "threshold"
type = "float"
above = 0
max = 1
default = 0.25
[[feature.option]]
name = "coefficients"
type = "floats"
{more}
[[switch]]
name = "{switch}"
feature = "{feature}"
form = "feature"
shorthand = "threshold"
"""

FAMILY_MANIFEST = """
schema = 1
name = "toy"
api = 1
kind = "model-family"

[family]
name = "toy"
transformer_classes = { ToyTransformer = "toy", ToyVaceTransformer = "toy-vace" }
seams = ["guidance", "denoiser", "stack", "block", "attention", "vae.decode"]

[family.facts]
"model.heads" = "transformer.num_attention_heads"
"model.head_dim" = "transformer.attention_head_dim"
"model.layers" = "transformer.num_layers"
"model.patch_size" = "transformer.patch_size"
"model.channels_in" = "transformer.in_channels"
"vae.z_dim" = "vae.z_dim"
"vae.spatial_factor" = { from = "vae.scale_factor_spatial", default = 8 }
"vae.temporal_factor" = { from = "vae.scale_factor_temporal", default = 4 }
"model.lossy_attention" = { value = true }

[family.instead]
vae-tiles = "toy-tiles"
"""


class Site:
    """A folder that stands for ``site-packages``: distributions are written into it, nothing is installed."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def metadata(
        self,
        distribution: str,
        entries: str,
        version: str = "1.0",
        kind: str = "dist-info",
        name: str | None = None,
    ) -> Path:
        """A metadata folder; ``entries`` are the lines of the group ``wf.plugins``, "" for no group at all."""
        stem = f"{distribution}-{version}.dist-info" if kind == "dist-info" else f"{distribution}.egg-info"
        folder = self.folder / stem
        folder.mkdir(parents=True)
        shown = distribution if name is None else name
        fields = f"Metadata-Version: 2.1\nName: {shown}\nVersion: {version}\n" if shown else ""
        (folder / ("METADATA" if kind == "dist-info" else "PKG-INFO")).write_text(fields)
        if entries:
            (folder / "entry_points.txt").write_text(
                f"[console_scripts]\nx = y:z\n\n[wf.plugins]\n{entries}\n"
            )
        return folder

    def module(self, name: str, code: str = "", manifest: str | None = None) -> Path:
        """A package with code and, when given, a manifest."""
        folder = self.folder / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "__init__.py").write_text(code)
        if manifest is not None:
            (folder / "wf-plugin.toml").write_text(manifest)
        return folder

    def cache(
        self,
        name: str,
        code: str = "",
        *,
        distribution: str = "",
        feature: str = "",
        api: int = 1,
        more: str = "",
        version: str = "1.0",
    ) -> str:
        """A whole feature-cache plugin; returns the name of its module."""
        module = "toyplug_" + name.replace("-", "_").replace(".", "_").lower()
        feature = feature or name.removeprefix("cache-")
        text = CACHE_MANIFEST.format(
            name=name, api=api, feature=feature, switch=feature.replace("-", "_"), more=more
        )
        self.module(module, code, text)
        self.metadata(distribution or f"wf-plugin-{name}", f"{name} = {module}", version)
        return module

    def plugin(self, name: str, manifest: str, code: str = "") -> str:
        """A plugin of any kind from its manifest."""
        module = "toyplug_" + name.replace("-", "_")
        self.module(module, code, manifest)
        self.metadata(f"wf-plugin-{name}", f"{name} = {module}")
        return module

    def family(self) -> str:
        """The model family ``toy``."""
        return self.plugin("toy", FAMILY_MANIFEST)


@pytest.fixture
def site(tmp_path: Path) -> Site:
    return Site(tmp_path / "site")


@pytest.fixture
def importable(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Path], None]]:
    """Puts a folder on ``sys.path``; modules of toy plugins are forgotten afterwards."""

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(str(folder))

    yield add
    for name in [name for name in sys.modules if name.startswith("toyplug_")]:
        del sys.modules[name]


@pytest.fixture
def other_site(tmp_path: Path) -> Site:
    return Site(tmp_path / "other")


def write_safetensors(path: Path, tensors: dict[str, tuple[str, int]], *, data: bool = True) -> None:
    """A file with the given tensors, name -> (dtype, bytes); the data is a hole in the file."""
    header, start = {}, 0
    for name, (dtype, size) in tensors.items():
        header[name] = {"dtype": dtype, "shape": [size], "data_offsets": [start, start + size]}
        start += size
    text = json.dumps(header).encode()
    with path.open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        if data:
            file.truncate(8 + len(text) + start)


@pytest.fixture
def toy_checkpoint(tmp_path: Path) -> Path:
    """A pipeline directory of the family ``toy`` with sparse weight files."""
    root = tmp_path / "hub" / "Toy-1B-Diffusers"
    index = {
        "_class_name": "ToyPipeline",
        "_diffusers_version": "0.42.1",
        "boundary_ratio": None,
        "scheduler": ["diffusers", "ToyScheduler"],
        "transformer": ["diffusers", "ToyTransformer"],
        "transformer_2": [None, None],
        "vae": ["diffusers", "ToyVae"],
    }
    configs = {
        "scheduler/scheduler_config.json": {"_class_name": "ToyScheduler"},
        "transformer/config.json": {
            "_class_name": "ToyTransformer",
            "num_attention_heads": 12,
            "attention_head_dim": 128,
            "num_layers": 30,
            "in_channels": 16,
            "patch_size": [1, 2, 2],
        },
        "vae/config.json": {"_class_name": "ToyVae", "z_dim": 16},
        "model_index.json": index,
    }
    for name, value in configs.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(json.dumps(value))
    transformer = {
        "blocks.0.attn1.to_q.weight": ("BF16", 4096),
        "blocks.0.norm.weight": ("F32", 64),
        "blocks.1.attn1.to_q.weight": ("BF16", 4096),
    }
    write_safetensors(root / "transformer" / "diffusion_pytorch_model.safetensors", transformer)
    write_safetensors(
        root / "vae" / "diffusion_pytorch_model.safetensors", {"decoder.conv.weight": ("F32", 128)}
    )
    return root
