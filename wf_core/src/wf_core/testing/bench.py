"""The bench that a family's manifest names under ``trial``."""

from __future__ import annotations

import importlib

from wf_core.errors import BadInput
from wf_core.model.bench import Bench


def bench_at(place: str) -> Bench:
    """The bench that ``package.module:function`` gives, as a family's manifest names it under ``trial``."""
    module, _, name = place.partition(":")
    try:
        made = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise BadInput(f"trial {place!r}: {error}") from None
    if not isinstance(made, Bench):
        raise BadInput(f"trial {place!r} must give a wf_core.testing.Bench, not {type(made).__name__}")
    return made
