"""A checkpoint directory in diffusers layout as component configs. Reads JSON and headers, never weights."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput
from wf_core.facts.configs import ComponentConfig, ComponentConfigs, WeightSummary, is_denoiser
from wf_core.facts.safetensors_header import read_header
from wf_core.files import JSON_BYTES, read_text
from wf_core.values import deeper_than

_INDEX = ".safetensors.index.json"
_DEEPEST = 32
_STEMS = ("diffusion_pytorch_model", "model")


def read_directory(path: Path) -> ComponentConfigs:
    """The components of a pipeline directory, or of a directory that holds one transformer.

    Raises `BadInput` with one line naming the file that is missing or corrupt.
    """
    if not os.path.isdir(path):
        raise BadInput(f"{path}: there is no such directory; give a checkpoint in diffusers layout")
    if os.path.isfile(path / "model_index.json"):
        return _read_pipeline(path)
    if os.path.isfile(path / "config.json"):
        component = _read_component(path, "transformer", "", True)
        return ComponentConfigs("", {}, {"transformer": component}, str(path.absolute()), str(path))
    raise BadInput(f"{path}: not in diffusers layout: it holds no model_index.json")


def _read_pipeline(path: Path) -> ComponentConfigs:
    index = _read_json(path / "model_index.json")
    components = {}
    for name, value in index.items():
        if not isinstance(value, list) or len(value) != 2 or value[1] is None:
            continue
        if name in ("", ".", "..") or name != Path(name).name:
            raise BadInput(f"{path / 'model_index.json'}: the component {name!r} is no name of a folder")
        weights = is_denoiser(name) or name == "vae"
        components[name] = _read_component(path / name, name, str(value[1]), weights)
    config = {
        name: value for name, value in index.items() if name not in components and not name.startswith("_")
    }
    pipeline = str(index.get("_class_name", ""))
    return ComponentConfigs(pipeline, config, components, str(path.absolute()), str(path))


def _read_component(path: Path, name: str, class_name: str, weights: bool) -> ComponentConfig:
    if not os.path.isdir(path):
        raise BadInput(f"{path}: model_index.json names the component {name!r}, but the folder is missing")
    names = ("config.json", "scheduler_config.json")
    file = next((path / name for name in names if os.path.isfile(path / name)), None)
    if file is None and weights:
        raise BadInput(f"{path / 'config.json'}: the file is missing")
    config = _read_json(file) if file is not None else {}
    return ComponentConfig(
        class_name or str(config.get("_class_name", "")),
        config,
        _weights(path) if weights else None,
        str(file or path),
    )


def _weights(path: Path) -> WeightSummary | None:
    files = _weight_files(path)
    if not files:
        if any(path.glob("*.bin")):
            return None  # pickled weights are never opened: their size and dtype stay unknown
        raise BadInput(f"{path / (_STEMS[0] + '.safetensors')}: the file is missing")
    tensors: dict[str, tuple[str, int]] = {}
    for file in files:
        tensors.update(read_header(file))
    return WeightSummary.of(tensors)


def _weight_files(path: Path) -> list[Path]:
    """The files of one set of weights: the plain variant before others (``fp16``), an index before a glob."""
    indexes = sorted(path.glob(f"*{_INDEX}"), key=lambda file: len(file.name))
    for stem in _STEMS:
        if os.path.isfile(path / f"{stem}.safetensors"):
            return [path / f"{stem}.safetensors"]
    if indexes:
        return _indexed(indexes[0])
    return sorted(path.glob("*.safetensors"))


def _indexed(index: Path) -> list[Path]:
    table = _read_json(index).get("weight_map")
    if not isinstance(table, Mapping) or not all(isinstance(name, str) for name in table.values()):
        raise BadInput(f"{index}: it has no weight_map of tensor names to files")
    stranger = next((name for name in table.values() if name != Path(name).name), None)
    if stranger is not None:
        raise BadInput(f"{index}: {stranger!r} is no name of a file beside it")
    return [index.parent / name for name in sorted(set(table.values()))]


def _read_json(path: Path) -> dict[str, Any]:
    try:
        value = json.loads(read_text(path, JSON_BYTES))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except RecursionError:
        raise BadInput(f"{path}: nested too deeply") from None
    except ValueError as error:
        raise BadInput(f"{path}: not valid JSON: {error}") from None
    if deeper_than(value, _DEEPEST):
        raise BadInput(f"{path}: nested too deeply")
    if not isinstance(value, dict):
        raise BadInput(f"{path}: expected a JSON object")
    return value
