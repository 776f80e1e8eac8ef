"""What a plugin's tests may import beside ``wf_core.api``: the parts of a session, one by one."""

from __future__ import annotations

from wf_core.copying import copy_module, copy_pipeline
from wf_core.facts.model import facts_from_directory, facts_from_pipeline
from wf_core.fingerprint import fingerprint
from wf_core.guard import ProcessState
from wf_core.manifest import Manifest
from wf_core.run import Run

__all__ = [
    "Manifest",
    "ProcessState",
    "Run",
    "copy_module",
    "copy_pipeline",
    "facts_from_directory",
    "facts_from_pipeline",
    "fingerprint",
]
