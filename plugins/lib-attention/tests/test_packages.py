"""Foreign packages: what their imports, versions, signatures and errors mean."""

from __future__ import annotations

import sys
from importlib import metadata

import pytest
import torch

from wf_core.api import Ineligible
from wf_lib_attention import packages


class Broken:
    """A finder that raises when a module of this name is imported."""

    def __init__(self, name, error):
        self.name, self.error = name, error

    def find_spec(self, name, path=None, target=None):
        if name == self.name:
            raise self.error


@pytest.mark.parametrize(
    "error", [ImportError("no such file"), OSError("undefined symbol"), AttributeError("no fmax")], ids=repr
)
def test_an_import_that_fails_is_a_refusal(error, monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Broken("of_nobody", error), *sys.meta_path])
    with pytest.raises(
        Ineligible, match=rf"of_nobody.attend cannot be imported \({type(error).__name__}: {error}\)"
    ):
        packages.function_of("of_nobody", "attend")


def test_a_missing_package_and_a_missing_function_are_refusals(package):
    with pytest.raises(Ineligible, match="ModuleNotFoundError"):
        packages.function_of("of_nobody_at_all", "attend")
    package("half", other=1)
    with pytest.raises(Ineligible, match=r"half\.attend cannot be imported"):
        packages.function_of("half", "attend")


def test_any_other_error_of_an_import_is_the_callers_to_see(monkeypatch):
    monkeypatch.setattr(sys, "meta_path", [Broken("of_nobody", ZeroDivisionError()), *sys.meta_path])
    with pytest.raises(ZeroDivisionError):
        packages.function_of("of_nobody", "attend")


def test_versions(monkeypatch):
    assert packages.version_of("torch") == metadata.version("torch")
    assert packages.version_of("of-nobody-at-all") == ""
    assert packages.release("2.8.3.post2") == (2, 8, 3)
    assert packages.release("4.0.0b36") == (4, 0, 0)
    assert packages.release("0.0.29") < packages.release("0.0.35+cu130") < packages.release("0.1")
    assert packages.release("unknown") == ()


def test_only_keywords_that_are_named_are_given():
    def swallows(q, scale=None, **kwargs): ...

    assert packages.keywords(swallows, scale=1.0, mask=2) == {"scale": 1.0}
    assert packages.keywords(dict.get, scale=1.0) in ({}, {"scale": 1.0})
    packages.require_keyword(swallows, "scale", "mine.attend")
    with pytest.raises(
        Ineligible, match=r"mine\.attend has no argument 'softmax_scale' in this version, only q, scale"
    ):
        packages.require_keyword(swallows, "softmax_scale", "mine.attend")


def test_the_attention_is_the_first_of_a_tuple():
    out = torch.ones(1)
    assert packages.only(out) is out
    assert packages.only((out, None)) is out
    with pytest.raises(TypeError, match="NoneType"):
        packages.only((None, out))


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("CUDA error: no kernel image is available for execution on the device"),
        RuntimeError("FlashAttention only supports Ampere GPUs or newer."),
        NotImplementedError("`cutlassF` is not supported because:"),
        ValueError("Unsupported head_dim: 256"),
        AssertionError("requires SM 90"),
        RuntimeError("invalid device function"),
        RuntimeError("not compiled with GPU support"),
    ],
    ids=str,
)
def test_messages_that_say_not_this_call(error):
    assert packages.unsupported(error)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory; expandable segments are not supported"),
        RuntimeError("CUDA error: an illegal memory access was encountered"),
        KeyError("q"),
        AssertionError(),
    ],
    ids=repr,
)
def test_messages_that_say_something_is_broken(error):
    assert not packages.unsupported(error)


def test_an_error_is_told_in_one_line():
    assert packages.told(ValueError("first\nsecond")) == "ValueError: first"
    assert packages.told(AssertionError()) == "AssertionError"
    assert len(packages.told(ValueError("x" * 5000))) < 400
