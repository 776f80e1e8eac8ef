"""Makes the helper module beside the tests importable; a host of everything that is installed."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def host():
    from wf_core import Host

    return Host.discover()
