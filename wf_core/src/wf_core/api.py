"""Everything that a plugin may import from the core. Nothing else in ``wf_core`` is promised to plugins."""

from __future__ import annotations

from wf_core.caching import CacheState, Decision, FeatureCache, ResidualState
from wf_core.calibration import Calibrator
from wf_core.counters import FeatureCounters
from wf_core.errors import BadInput, Busy, CannotCopy, Ineligible, PluginFault, Refused, WfError
from wf_core.facts import Fact, Facts
from wf_core.family import CallPlan, ModelFamily, Schedule
from wf_core.hookspecs import hookimpl
from wf_core.identity import Context, Step
from wf_core.roots import specialise
from wf_core.runview import RunView
from wf_core.seams import SEAMS, Handler, Seams, Site
from wf_core.techniques import AttentionProvider, Technique, VaeDecoder
from wf_core.wiring import Wiring

API = 1
"""The number a manifest's ``api`` is compared with."""

__all__ = [
    "API",
    "AttentionProvider",
    "BadInput",
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
    "specialise",
]
