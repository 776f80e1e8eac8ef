"""Finding the installed package that an import failed on, and going on without it."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from wf_core.broken_packages import HOLDERS, BrokenPackage, cause, culprit, surviving

from .conftest import Site

MODULES = ("xformers", "flash_attn", "toy_library", "toy_lazy")


@pytest.fixture(autouse=True)
def clean(site: Site, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Afterwards the libraries that were forgotten are the ones that other tests hold classes of."""
    monkeypatch.syspath_prepend(str(site.folder))
    forgotten = {*MODULES, *HOLDERS}
    kept = {name: module for name, module in sys.modules.items() if name.partition(".")[0] in HOLDERS}
    yield
    for name in [name for name in sys.modules if name.partition(".")[0] in forgotten]:
        del sys.modules[name]
    sys.modules.update(kept)


def failure(module: str) -> BaseException:
    with pytest.raises(BaseException) as caught:
        importlib.import_module(module)
    return caught.value


def test_the_culprit_is_the_innermost_suspect_whose_code_was_running(site: Site) -> None:
    site.module("xformers", "import flash_attn\n")
    site.module("flash_attn", "raise AttributeError('no such\\nop')\n")
    site.module("toy_library", "import xformers\n")
    error = failure("toy_library")
    assert (culprit(error), cause(error)) == ("flash_attn", "AttributeError: no such op")


def test_a_suspect_that_misses_a_module_of_another_is_to_blame(site: Site) -> None:
    site.module("flash_attn")
    site.module("xformers", "from flash_attn.flash_attn_interface import flash_attn_func\n")
    assert culprit(failure("xformers")) == "xformers"


def test_a_name_that_a_suspect_does_not_have_is_laid_to_it(site: Site) -> None:
    site.module("flash_attn")
    site.module("toy_library", "from flash_attn import flash_attn_func\n")
    assert culprit(failure("toy_library")) == "flash_attn"


def test_libraries_that_import_lazily_do_not_hide_it(site: Site) -> None:
    site.module("xformers", "raise SystemExit(3)\n")
    lazy = "try:\n    import xformers\nexcept BaseException as e:\n    raise RuntimeError('look up') from e\n"
    site.module("toy_lazy", lazy)
    error = failure("toy_lazy")
    assert (culprit(error), cause(error)) == ("xformers", "it exits at import (3)")


def test_nobody_is_suspected_of_what_has_another_cause(site: Site) -> None:
    site.module("toy_library", "import no_such_module\n")
    assert culprit(failure("toy_library")) == ""


def test_a_program_goes_on_without_what_stands_in_its_way(
    site: Site, capsys: pytest.CaptureFixture[str]
) -> None:
    site.module("xformers", "raise RuntimeError('for another torch')\n")
    guarded = "from importlib.util import find_spec\nthere = find_spec('xformers') is not None\n"
    site.module("toy_library", f"{guarded}if there:\n    import xformers\n")
    surviving(lambda: importlib.import_module("toy_library") and None)
    assert sys.modules["toy_library"].there is False
    assert capsys.readouterr().err == (
        "wf: warning: the installed package xformers cannot be imported (RuntimeError: for another torch); "
        "it counts as not installed here\n"
    )


def test_it_tries_once_for_each_suspect_and_leaves_the_rest_to_others(site: Site, tmp_path: Path) -> None:
    tried = []

    def load() -> None:
        tried.append(1)
        raise ImportError("cannot import name 'x' from 'xformers'", name="xformers")

    surviving(load)
    assert len(tried) == 2


def test_the_error_for_a_library_names_the_package_and_two_ways_out() -> None:
    text = str(BrokenPackage("xformers", RuntimeError("no")))
    assert text.startswith("the installed package xformers cannot be imported (RuntimeError: no)")
    assert "uninstall xformers" in text and 'sys.modules["xformers"] = None' in text
