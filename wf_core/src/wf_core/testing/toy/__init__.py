"""A model family for tests: a tiny video transformer with every seam that a technique can stand at today.

It needs no other plugin and nothing of diffusers, so that a plugin can be checked beside wf-core alone. No entry point
names it: a host has it only where `wf_core.testing.host_of` is asked to. `wf new-plugin --kind model-family` writes
these files under another name, so they import what a plugin may, and no line's layout depends on the length of a name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from wf_core.api import hookimpl

if TYPE_CHECKING:
    from wf_core.api import ModelFamily


@hookimpl
def wf_model_family() -> ModelFamily:
    from wf_core.testing.toy.family import ToyFamily

    return ToyFamily()
