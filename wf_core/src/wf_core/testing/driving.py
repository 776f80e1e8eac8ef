"""Drive a feature cache by hand: a run without a model, whose steps, values and outputs a test chooses."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from wf_core.facts import Facts
from wf_core.kinds.caching.runtime import FeatureCache
from wf_core.kinds.runview import RunView
from wf_core.model.identity import Step
from wf_core.model.seams import Site

Compute = Callable[[torch.Tensor], torch.Tensor]


class CountedByHand:
    """What a technique counts with, kept in two plain counters."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.fallbacks: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount

    def fall_back(self, seam: str, reason: str) -> None:
        self.fallbacks[reason] += 1


class CacheDriver:
    """Plays the host and the model for one cache.

    The model is ``blocks``, functions of a tensor, run one after another: at ``stack`` and ``block`` they see hidden
    states ``[B, L, D]``, at ``denoiser`` and ``guidance`` the argument ``hidden_states``. ``ran`` lists the indices of
    the blocks that each call really ran. ``modulation(timesteps)`` gives the time signals, see `RunView`.
    """

    def __init__(
        self,
        cache: FeatureCache,
        blocks: Sequence[Compute] = (lambda x: x + 1.0,),
        modulation: Any = None,
        facts: Facts | None = None,
    ) -> None:
        self.cache = cache
        self.blocks = list(blocks)
        self.modulation = modulation
        self.facts = facts if facts is not None else Facts()
        self.counters = CountedByHand()
        self.ran: list[list[int]] = []
        self._step: Step | None = None

    def view(
        self,
        steps: int | Sequence[float],
        experts: Sequence[str] = (),
        branches: int = 2,
        facts: Mapping[str, Any] | None = None,
    ) -> RunView:
        """A run of these timesteps; of a number of steps whose timesteps are not known; 0 for neither."""
        timesteps = () if isinstance(steps, int) else tuple(steps)
        known = self.facts.with_(facts or {}, source="the driver")
        return RunView(
            num_inference_steps=steps if isinstance(steps, int) else len(timesteps),
            timesteps=timesteps,
            experts=tuple(experts) or ("transformer",) * len(timesteps),
            branches=branches,
            facts=known,
            modulation=self._modulate,
            now=lambda: self._step,
        )

    def begin(self, run: RunView) -> CountedByHand:
        """Open a run that the cache accepts; its counters."""
        self.counters = CountedByHand()
        self.cache.counters = self.counters  # type: ignore[assignment]
        reasons = list(self.cache.check(run))
        assert not reasons, reasons
        self.cache.begin(run)
        self.ran = []
        return self.counters

    def call(
        self,
        index: int,
        value: torch.Tensor | None = None,
        *,
        timestep: float | torch.Tensor = 0.0,
        branch: str = "cond",
        expert: str = "transformer",
        total: int = 0,
        source: str = "context",
        grid: tuple[int, int, int] = (1, 1, 2),
    ) -> torch.Tensor:
        """One transformer call; ones ``[1, 2, 4]`` where no value is given."""
        x = torch.ones(1, 2, 4) if value is None else value
        t = timestep if isinstance(timestep, torch.Tensor) else torch.full((x.shape[0],), float(timestep))
        self._step = Step(index, total, branch, expert, source, t, grid)
        self.ran.append([])
        try:
            handlers = self.cache.handlers()
            model = self._wrapped("stack", self._run_blocks)
            outer = next((seam for seam in ("guidance", "denoiser") if seam in handlers), None)
            if outer is None:
                return model(x)
            output: torch.Tensor = handlers[outer](
                lambda arguments: model(arguments["hidden_states"]), Site(outer), {"hidden_states": x}
            )
            return output
        finally:
            self._step = None

    def play(
        self, run: RunView, branches: Sequence[str] = ("cond",), value: torch.Tensor | None = None
    ) -> dict[str, list[int]]:
        """Every step of a run, branch by branch; the computed steps of each."""
        for index in range(run.num_inference_steps):
            timestep = run.timesteps[index] if run.timesteps else 0.0
            expert = run.experts[index] if run.experts else "transformer"
            for branch in branches:
                self.call(
                    index,
                    value,
                    timestep=timestep,
                    branch=branch,
                    expert=expert,
                    total=run.num_inference_steps,
                )
        return {branch: self.computed(branch) for branch in branches}

    def computed(self, branch: str = "cond", expert: str | None = None) -> list[int]:
        """The steps at which a branch was computed."""
        return [
            event.step
            for event in self.cache.events
            if event.computed and event.branch == branch and expert in (None, event.expert)
        ]

    def reasons(self, branch: str = "cond") -> dict[int, str]:
        """Why each step of a branch was decided as it was."""
        return {event.step: event.reason for event in self.cache.events if event.branch == branch}

    def _run_blocks(self, x: torch.Tensor) -> torch.Tensor:
        for index, block in enumerate(self.blocks):
            x = self._wrapped("block", self._counted(index, block), index)(x)
        return x

    def _counted(self, index: int, block: Compute) -> Compute:
        def run(x: torch.Tensor) -> torch.Tensor:
            self.ran[-1].append(index)
            return block(x)

        return run

    def _wrapped(self, seam: str, stock: Compute, index: int = -1) -> Compute:
        handler = self.cache.handlers().get(seam)
        if handler is None:
            return stock
        path = f"blocks.{index}" if seam == "block" else ""
        site = Site(seam, root="transformer", path=path, index=index)
        return lambda x: handler(stock, site, x)

    def _modulate(self, expert: str, timesteps: Any) -> Mapping[str, torch.Tensor]:
        chosen = self.modulation[expert] if isinstance(self.modulation, dict) else self.modulation
        found: Mapping[str, torch.Tensor] = chosen(tuple(float(t) for t in timesteps))
        return found
