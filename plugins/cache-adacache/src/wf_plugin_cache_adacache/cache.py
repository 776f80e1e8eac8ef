"""The feature: AdaCache around the stack of blocks, with an eye on one block's self-attention."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from wf_core.api import FeatureCache
from wf_plugin_cache_adacache.rule import schedule
from wf_plugin_cache_adacache.states import AdaState

if TYPE_CHECKING:
    import torch

    from wf_core.api import Handler, RunView, Site
    from wf_plugin_cache_adacache.settings import Settings

CONTAINERS = ("blocks.", "transformer_blocks.")
ROLES = ("self", "joint")


class AdaCache(FeatureCache):
    """One session's AdaCache. Source of the rule: arXiv 2411.02397.

    Counts ``host_syncs`` beside ``computed`` and ``skipped``: one for each computed call that has an older one to be
    compared with and is followed by a step that could be skipped.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self._shown: dict[str, object] = {}

    def handlers(self) -> Mapping[str, Handler]:
        return {**super().handlers(), "gated_residual": self._watch}

    def wants(self, site: Site) -> bool:
        return site.seam != "gated_residual" or is_watched(site, self.settings.block)

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._shown = self._describe(run)
        total = run.num_inference_steps
        if total and self._longest(run) == total:
            self.counters.fall_back(
                "stack",
                f"all {total} steps are computed: the first {self.settings.window.first}, the last "
                f"{self.settings.window.last}, the first two of each expert, and every rate is at most "
                f"{max(self.settings.book.scaled(total).rates)}",
            )

    def new_state(self, run: RunView, expert: str, branch: str) -> AdaState:
        _, step = self.now()
        return AdaState(self.settings, self.counters, self.total(step))

    def evidence(self) -> Mapping[str, object]:
        return dict(self._shown)

    def _watch(
        self,
        inner: Callable[..., torch.Tensor],
        site: Site,
        x: torch.Tensor,
        out: torch.Tensor,
        gate: torch.Tensor | None,
    ) -> torch.Tensor:
        if is_watched(site, self.settings.block):
            state = self.state(self.now()[1])
            assert isinstance(state, AdaState)
            state.see(out, gate)
        return inner(x, out, gate)

    def _longest(self, run: RunView) -> int:
        """How many steps are computed where every rate is the book's longest."""
        total, window = run.num_inference_steps, self.settings.window
        experts = run.experts or ("",) * total
        starts = {i for i in range(total) if not i or experts[i] != experts[i - 1]}
        longest = max(self.settings.book.scaled(total).rates)
        return len(schedule(total, lambda _: longest, window.first, window.last, starts))

    def _describe(self, run: RunView) -> dict[str, object]:
        settings, book = self.settings, self.settings.book.scaled(run.num_inference_steps)
        shown: dict[str, object] = {
            "decisions": "live",
            "block": settings.block,
            "source": settings.source,
            "thresholds": list(book.thresholds),
            "rates": list(book.rates),
            "motion": settings.motion is not None,
            "first": settings.window.first,
            "last": settings.window.last,
        }
        if settings.threshold is not None:
            shown["threshold"] = settings.threshold
        if settings.lent:
            shown["uncalibrated"] = settings.lent
        return shown


def is_watched(site: Site, block: int) -> bool:
    """Whether a ``gated_residual`` site is that of the self-attention of one main block (VACE has others beside).

    Where text and latent are two streams that attend together, it is that of the latent's.
    """
    return site.index == block and site.role in ROLES and site.path.startswith(CONTAINERS)
