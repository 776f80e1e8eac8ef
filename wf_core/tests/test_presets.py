"""Preset files, and whose numbers they are."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import save_file

from wf_core.api import BadInput, Facts, checkpoint_of, read_preset, require_own, why_lent


def write(path: Path, **changes: object) -> Path:
    path.write_text(json.dumps({"schema": 1, "feature": "mine", "numbers": [1.0], **changes}))
    return path


def test_a_preset_file_is_read(tmp_path: Path) -> None:
    assert read_preset(write(tmp_path / "p.json"), "mine", dict)["numbers"] == [1.0]


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{", "is not JSON"),
        ("[]", "is not a mine preset"),
        ('{"schema": 1}', "is not a mine preset"),
        ('{"schema": 2, "feature": "mine"}', "is not a mine preset"),
        ('{"schema": 1, "feature": "other"}', "is not a mine preset"),
        ("[" * 100_000, "is not JSON"),
        ("x" * ((1 << 20) + 1), "more than 1 MiB"),
    ],
)
def test_what_is_no_preset_is_one_line_that_names_the_file(tmp_path: Path, text: str, says: str) -> None:
    path = tmp_path / "p.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=says) as error:
        read_preset(path, "mine", dict)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_folder_and_a_pipe_are_no_preset_and_are_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe", tmp_path / "nothing"):
        with pytest.raises(BadInput, match="not there, or no regular file"):
            read_preset(path, "mine", dict)


@pytest.mark.parametrize(
    ("build", "says"),
    [
        (lambda data: data["other"], "cannot be used: it lacks 'other'"),
        (lambda data: float(data["numbers"]), "cannot be used: float"),
        (lambda data: data["numbers"].keys(), "cannot be used: 'list' object"),
        (lambda data: float("one"), "cannot be used: could not convert"),
    ],
)
def test_what_cannot_be_built_is_one_line_that_names_the_file(
    tmp_path: Path, build: Callable[[Any], Any], says: str
) -> None:
    with pytest.raises(BadInput, match=says) as error:
        read_preset(write(tmp_path / "p.json"), "mine", build)
    assert "p.json" in str(error.value)
    assert "\n" not in str(error.value)


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    import torch

    folder = tmp_path / "model"
    (folder / "transformer").mkdir(parents=True)
    save_file({"w": torch.arange(4.0)}, folder / "transformer" / "diffusion_pytorch_model.safetensors")
    return folder


def test_the_weights_of_the_folder_that_a_model_came_from_are_compared(checkpoint: Path) -> None:
    import torch

    facts = Facts.of({"model.id": "mine", "model.directory": str(checkpoint)}, "test")
    own = checkpoint_of(facts)
    assert own.startswith("sha256:")
    assert why_lent("p", ["mine"], own, facts) == ""
    assert why_lent("p", ["mine"], "", facts) == "", "a preset that names no weights"
    weights = checkpoint / "transformer" / "diffusion_pytorch_model.safetensors"
    save_file({"w": torch.arange(4.0) + 1}, weights)
    os.utime(weights, (1, 1))
    assert checkpoint_of(facts) != own, "read again when a file has changed"
    assert "measured on other weights" in why_lent("p", ["mine"], own, facts)


def test_weights_that_are_gone_are_one_line_that_names_the_file(checkpoint: Path) -> None:
    (checkpoint / "transformer" / "more.safetensors").symlink_to(checkpoint / "nothing")
    with pytest.raises(BadInput, match=r"more\.safetensors: cannot be read"):
        checkpoint_of(Facts.of({"model.directory": str(checkpoint)}, "test"))


def test_weights_that_nobody_knows_are_not_compared(tmp_path: Path) -> None:
    for facts in (Facts.of({"model.id": "mine"}, "t"), Facts.of({"model.directory": str(tmp_path)}, "t")):
        assert checkpoint_of(facts) == ""
    assert why_lent("p", ["mine"], "sha256:1", Facts.of({"model.id": "Mine"}, "t")) == ""
    assert "this model is yours" in why_lent("p", ["mine"], "", Facts.of({"model.id": "yours"}, "t"))
    assert "an unnamed checkpoint" in why_lent("p", [], "", Facts.of({"model.id": "yours"}, "t"))


@pytest.mark.parametrize("value", [False, None, 1, "true"])
def test_a_lent_preset_needs_a_plain_yes(value: object) -> None:
    with pytest.raises(BadInput, match=r"mine: it is lent; say allow_uncalibrated=true.*wf calibrate mine"):
        require_own("mine", "it is lent", Facts.of({"request.allow_uncalibrated": value}, "t"))
    require_own("mine", "it is lent", Facts.of({"request.allow_uncalibrated": True}, "t"))
    require_own("mine", "", Facts())
