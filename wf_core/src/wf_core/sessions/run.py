"""A run: one call of the session's pipeline. All state and all counters belong to it."""

from __future__ import annotations

import time
import uuid
from collections import Counter

from wf_core.kinds.counters import Counters
from wf_core.kinds.runview import RunView
from wf_core.model.identity import IdentityTracker, Step


class Run:
    """Begins at the call, ends at return, exception or interrupt.

    ``state`` is ``running``, then one of ``done``, ``aborted`` (an exception), ``interrupted`` (the pipeline's own
    interrupt flag) or ``refused`` (no model call was made).
    """

    def __init__(self, view: RunView) -> None:
        self.id = uuid.uuid4().hex
        self.view = view
        self.counters = Counters()
        self.identity = IdentityTracker(view.timesteps, view.num_inference_steps, view.branches)
        self.calls: Counter[tuple[str, str]] = Counter()
        self.steps_seen: set[int] = set()
        self.state = "running"
        self.error = ""
        self.started = time.perf_counter()
        self.seconds = 0.0

    def count_call(self, step: Step) -> None:
        """One transformer call; counted outside any compiled region, on the host."""
        self.calls[step.expert, step.branch] += 1
        self.steps_seen.add(step.index)

    def finish(self, state: str, error: str = "") -> None:
        self.state = state
        self.error = error
        self.seconds = time.perf_counter() - self.started
