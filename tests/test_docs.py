"""The pages say what is there: the generated page is up to date, and nothing that a user can type is left out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from wf_core import Host, data
from wf_core.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = (ROOT / "docs" / "plugins.md").read_text() + (ROOT / "README.md").read_text()


def test_the_generated_page_is_up_to_date() -> None:
    command = [sys.executable, str(ROOT / "docs" / "generate.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, f"run `make docs`: docs/plugins.md is not what is installed {done.stderr}"


@pytest.mark.parametrize("command", sorted(COMMANDS))
def test_every_command_is_in_the_readme(command: str) -> None:
    assert f"wf {command}" in (ROOT / "README.md").read_text()


@pytest.mark.parametrize("table", ["selector", "host"])
def test_every_key_of_the_core_is_documented(table: str) -> None:
    names = [row["name"] for row in data.table("selectors")[table]]
    assert [name for name in names if f"`{name}`" not in PAGES] == []


def test_everything_that_installed_plugins_offer_is_documented(host: Host) -> None:
    offers = list(host.catalog.features())
    names = {offer.feature.name for offer in offers}
    names |= {switch.name for offer in offers for switch in offer.switches}
    names |= {record.name for record in host.plugins} | set(host.catalog.model_names())
    assert names
    assert sorted(name for name in names if f"`{name}`" not in PAGES) == []
