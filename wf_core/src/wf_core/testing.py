"""What a plugin's tests may import beside ``wf_core.api``: the parts of a session, one by one."""

from __future__ import annotations

from wf_core.facts.model import facts_from_directory, facts_from_pipeline
from wf_core.isolation.copying import copy_module, copy_pipeline
from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.guard import ProcessState
from wf_core.manifests.manifest import Manifest
from wf_core.sessions.run import Run

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
