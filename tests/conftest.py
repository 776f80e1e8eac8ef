"""Fixtures of the tests that cross distributions."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from wf_core import Host


@pytest.fixture(scope="session")
def host() -> Host:
    """A host of everything that is installed."""
    return Host.discover()


@pytest.fixture
def host_with(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[Path], Path]], Host]:
    """``host_with(write_plugin_function)``: everything installed, and one more plugin from a temporary folder."""

    def make(write: Callable[[Path], Path]) -> Host:
        root = write(tmp_path / "site")
        monkeypatch.syspath_prepend(str(root))
        written = {path.name for path in root.iterdir()}
        for name in [name for name in sys.modules if name.partition(".")[0] in written]:  # of another test
            monkeypatch.delitem(sys.modules, name)
        return Host.discover()

    return make
