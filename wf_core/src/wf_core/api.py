"""Everything that a plugin may import from the core. Nothing else in ``wf_core`` is promised to plugins."""

from __future__ import annotations

from wf_core.errors import BadInput, Busy, CannotCopy, Ineligible, PluginFault, Refused, WfError
from wf_core.facts import Fact, Facts
from wf_core.hookspecs import hookimpl
from wf_core.kinds.caching import CacheState, Decision, FeatureCache, ResidualState
from wf_core.kinds.calibration import Calibrator
from wf_core.kinds.counters import FeatureCounters
from wf_core.kinds.runview import RunView
from wf_core.kinds.techniques import AttentionProvider, Technique, VaeDecoder
from wf_core.model.bench import Bench, seeded
from wf_core.model.family import CallPlan, ModelFamily, Schedule
from wf_core.model.identity import Context, Step
from wf_core.model.roots import specialise
from wf_core.model.seams import SEAMS, Handler, Seams, Site
from wf_core.model.wiring import Wiring

API = 1
"""The number a manifest's ``api`` is compared with."""

__all__ = [
    "API",
    "AttentionProvider",
    "BadInput",
    "Bench",
    "Busy",
    "CacheState",
    "Calibrator",
    "CallPlan",
    "CannotCopy",
    "Context",
    "Decision",
    "Fact",
    "Facts",
    "FeatureCache",
    "FeatureCounters",
    "Handler",
    "Ineligible",
    "ModelFamily",
    "PluginFault",
    "Refused",
    "ResidualState",
    "RunView",
    "SEAMS",
    "Schedule",
    "Seams",
    "Site",
    "Step",
    "Technique",
    "VaeDecoder",
    "WfError",
    "Wiring",
    "hookimpl",
    "seeded",
    "specialise",
]
