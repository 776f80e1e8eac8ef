"""The core's own tables, as TOML beside this file: nothing here is code."""

from __future__ import annotations

import tomllib
from functools import cache
from pathlib import Path
from typing import Any


@cache
def table(name: str) -> dict[str, Any]:
    """The parsed ``<name>.toml``. Read once per process; the caller must not change it."""
    with Path(__file__).with_name(f"{name}.toml").open("rb") as file:
        return tomllib.load(file)
