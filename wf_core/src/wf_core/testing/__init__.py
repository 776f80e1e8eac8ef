"""What a plugin's tests may import beside ``wf_core.api``: conformance, hosts, benches, pipelines, parts of a session.

The conformance classes need pytest (``wf-core[testing]``); nothing is imported before it is used.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from wf_core.checkpoints import load_pipeline
    from wf_core.facts.model import facts_from_directory, facts_from_pipeline
    from wf_core.isolation.copying import copy_module, copy_pipeline
    from wf_core.isolation.fingerprint import fingerprint
    from wf_core.isolation.guard import ProcessState
    from wf_core.manifests.manifest import Manifest
    from wf_core.model.bench import Bench, seeded
    from wf_core.sessions.run import Run
    from wf_core.testing.conformance import (
        AttentionProviderConformance,
        ExecutionModeConformance,
        FeatureCacheConformance,
        FusionConformance,
        ModelFamilyConformance,
        ModelSourceConformance,
        SparseKernelConformance,
        VaeDecoderConformance,
    )
    from wf_core.testing.driving import CacheDriver
    from wf_core.testing.hosts import host_of

__all__ = [
    "AttentionProviderConformance",
    "Bench",
    "CacheDriver",
    "FeatureCacheConformance",
    "ExecutionModeConformance",
    "FusionConformance",
    "Manifest",
    "ModelFamilyConformance",
    "ModelSourceConformance",
    "ProcessState",
    "Run",
    "SparseKernelConformance",
    "VaeDecoderConformance",
    "copy_module",
    "copy_pipeline",
    "facts_from_directory",
    "facts_from_pipeline",
    "fingerprint",
    "host_of",
    "load_pipeline",
    "seeded",
]

_HOME = {
    "Bench": "model.bench",
    "CacheDriver": "testing.driving",
    "Manifest": "manifests.manifest",
    "ProcessState": "isolation.guard",
    "Run": "sessions.run",
    "copy_module": "isolation.copying",
    "copy_pipeline": "isolation.copying",
    "facts_from_directory": "facts.model",
    "facts_from_pipeline": "facts.model",
    "fingerprint": "isolation.fingerprint",
    "host_of": "testing.hosts",
    "load_pipeline": "checkpoints",
    "seeded": "model.bench",
}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    home = _HOME.get(name, "testing.conformance")
    return getattr(import_module(f"wf_core.{home}"), name)
