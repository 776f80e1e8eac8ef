"""The feature: EasyCache around each transformer call."""

from __future__ import annotations

from wf_core.api import CacheState, FeatureCache, RunView
from wf_plugin_cache_easycache.rule import Settings, free_steps
from wf_plugin_cache_easycache.states import EasyState, Turn


class EasyCache(FeatureCache):
    """One session's EasyCache. Source of the rule: arXiv 2507.02860, section 3.

    The first branch that is called in a step decides for that step and expert, with one read-back from the device
    (counted as ``host_syncs``); the others do as it does, each with its own kept tensor.
    """

    seam = "denoiser"

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._turns: dict[str, Turn] = {}

    def begin(self, run: RunView) -> None:
        super().begin(run)
        first, last = self.settings.first, self.settings.last
        total = run.num_inference_steps
        if total and not free_steps(total, run.experts, first, last):
            self.counters.fall_back(
                self.seam,
                f"all {total} steps are computed: the first {first} and the last {last} always are, and so are the "
                "first two of an expert, before which there is no rate",
            )

    def new_state(self, run: RunView, expert: str, branch: str) -> CacheState:
        return EasyState(self.settings, run, self._turns.setdefault(expert, Turn()), self.counters)

    def forget(self) -> None:
        super().forget()
        self._turns = {}
