"""Everything that a plugin may import from the core. Nothing else in ``wf_core`` is promised to plugins."""

from __future__ import annotations

from wf_core.errors import BadInput, Busy, CannotCopy, Ineligible, PluginFault, Refused, WfError
from wf_core.facts import Fact, Facts
from wf_core.hookspecs import hookimpl
from wf_core.kinds.caching.decisions import Decision, Reason, Window
from wf_core.kinds.caching.distances import (
    Reading,
    abs_sums,
    mean_abs,
    relative_l1,
    relative_of_sums,
    worst,
)
from wf_core.kinds.caching.runtime import FeatureCache
from wf_core.kinds.caching.schedules import (
    Follower,
    ScheduledCache,
    ScheduledState,
    StaticSchedule,
    expert_start,
    scheduled,
    solver_timestep,
)
from wf_core.kinds.caching.states import CacheState, Differences, ResidualState, geometry, retained
from wf_core.kinds.calibration import Calibrator
from wf_core.kinds.counters import FeatureCounters
from wf_core.kinds.presets import checkpoint_of, model_id, read_preset, require_own, why_lent
from wf_core.kinds.runview import RunView
from wf_core.kinds.scoring import PromptScorer
from wf_core.kinds.serving import serving
from wf_core.kinds.techniques import AttentionProvider, Technique, VaeDecoder
from wf_core.kinds.variants import Variants
from wf_core.model.bench import Bench, seeded
from wf_core.model.family import CallPlan, ModelFamily, Schedule
from wf_core.model.identity import Context, Step
from wf_core.model.roots import specialise
from wf_core.model.seams import SEAMS, Handler, Seams, Site
from wf_core.model.token_rows import TokenRows, dense
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
    "Differences",
    "Fact",
    "Facts",
    "FeatureCache",
    "FeatureCounters",
    "Follower",
    "Handler",
    "Ineligible",
    "ModelFamily",
    "PluginFault",
    "PromptScorer",
    "Reading",
    "Reason",
    "Refused",
    "ResidualState",
    "RunView",
    "SEAMS",
    "Schedule",
    "ScheduledCache",
    "ScheduledState",
    "Seams",
    "Site",
    "StaticSchedule",
    "Step",
    "Technique",
    "TokenRows",
    "VaeDecoder",
    "Variants",
    "WfError",
    "Window",
    "Wiring",
    "abs_sums",
    "checkpoint_of",
    "dense",
    "expert_start",
    "geometry",
    "hookimpl",
    "mean_abs",
    "model_id",
    "read_preset",
    "relative_l1",
    "relative_of_sums",
    "require_own",
    "retained",
    "scheduled",
    "seeded",
    "serving",
    "solver_timestep",
    "specialise",
    "why_lent",
    "worst",
]
