"""Importing a plugin: under the guard, with the failure named, and with nothing left behind (B23, B67)."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wf_core.errors import PluginFault
from wf_core.plugins.discovery import PluginRecord, discover
from wf_core.plugins.loading import load_plugin

from .conftest import Site

Importable = Callable[[Path], None]


def record_of(site: Site, importable: Importable, name: str, code: str) -> PluginRecord:
    site.cache(name, code)
    importable(site.folder)
    record = discover([str(site.folder)], {}).plugin(name)
    assert record is not None
    assert record.state == "available"
    return record


def test_a_good_plugin_is_imported_once(site: Site, importable: Importable) -> None:
    code = "import sys\nsys.toy_imports = getattr(sys, 'toy_imports', 0) + 1\nvalue = 5\n"
    record = record_of(site, importable, "cache-good", code)
    try:
        assert load_plugin(record).value == 5
        assert load_plugin(record).value == 5
        assert sys.toy_imports == 1  # type: ignore[attr-defined]
        assert record.state == "available"
    finally:
        del sys.toy_imports  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import no_such_module_at_all", "ModuleNotFoundError: No module named 'no_such_module_at_all'"),
        ("raise ValueError('two\\nlines')", "ValueError: two lines"),
        ("import sys\nsys.exit(3)", "it exits at import (3)"),
        ("def broken(:\n", "SyntaxError"),
    ],
)
def test_b67_a_failing_import_names_plugin_and_cause_and_leaves_nothing(
    site: Site, importable: Importable, code: str, cause: str
) -> None:
    record = record_of(site, importable, "cache-bad", "from . import part\n" + code)
    (site.folder / record.module / "part.py").write_text("")
    with pytest.raises(PluginFault) as caught:
        load_plugin(record)
    assert cause in str(caught.value)
    assert "'cache-bad', import" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert not [name for name in sys.modules if name.startswith(record.module)]
    assert record.state == "broken"
    assert cause in record.reason
    assert record.features()[0].state == "broken"
    with pytest.raises(PluginFault, match="it is broken"):
        load_plugin(record)


def test_b67_a_missing_attribute(site: Site, importable: Importable) -> None:
    site.cache("cache-attr")
    (site.folder / "wf-plugin-cache-attr-1.0.dist-info" / "entry_points.txt").write_text(
        "[wf.plugins]\ncache-attr = toyplug_cache_attr:gone\n"
    )
    importable(site.folder)
    [record] = discover([str(site.folder)], {}).plugins
    with pytest.raises(PluginFault, match="gone"):
        load_plugin(record)


def test_an_interrupt_is_passed_on_and_leaves_nothing(site: Site, importable: Importable) -> None:
    record = record_of(site, importable, "cache-slow", "raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        load_plugin(record)
    assert record.module not in sys.modules
    assert record.state == "available"


def test_a_plugin_that_is_not_available_is_not_imported(site: Site, importable: Importable) -> None:
    site.cache("cache-one", "raise RuntimeError")
    importable(site.folder)
    [record] = discover([str(site.folder)], {"WF_BLOCK": "cache-one"}).plugins
    with pytest.raises(PluginFault, match="it is blocked: WF_BLOCK names cache-one"):
        load_plugin(record)


def test_b23_an_import_that_changes_the_process_is_undone_and_named(
    site: Site, importable: Importable
) -> None:
    torch = pytest.importorskip("torch")
    code = (
        "import os, random, torch\n"
        "torch.set_default_dtype(torch.float64)\n"
        "torch.backends.cuda.enable_flash_sdp(False)\n"
        "os.environ['TOYPLUG_TOUCHED'] = '1'\n"
        "random.seed(5)\ntorch.manual_seed(5)\n"
    )
    record = record_of(site, importable, "cache-rude", code)
    torch.manual_seed(123)
    random.seed(123)
    expected = (torch.rand(3), random.random())
    torch.manual_seed(123)
    random.seed(123)
    with pytest.raises(PluginFault) as caught:
        load_plugin(record)
    assert torch.equal(torch.rand(3), expected[0])
    assert random.random() == expected[1]
    assert torch.get_default_dtype() is torch.float32
    assert torch.backends.cuda.flash_sdp_enabled()
    assert "TOYPLUG_TOUCHED" not in os.environ
    for touched in ("dtype", "flash", "TOYPLUG_TOUCHED"):
        assert touched in str(caught.value)
    assert record.state == "broken"
    assert record.module not in sys.modules


def test_b23_listing_and_another_plugins_import_do_not_import_it(site: Site, importable: Importable) -> None:
    marker = site.folder / "imported"
    site.cache("cache-rude", f"open({str(marker)!r}, 'w').close()\n")
    record = record_of(site, importable, "cache-good", "value = 1\n")
    load_plugin(record)
    assert not marker.exists()
