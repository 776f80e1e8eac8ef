"""Which step, branch and expert a transformer call belongs to.

The sources, in this order, each named in the report:

1. ``context``: the pipeline entered ``cache_context(name, step_index=..., num_inference_steps=...)``.
2. ``context-name``: only the name is given. The step is how often the run's first branch was entered: it leads, and
   the others belong to the step it is at (a guidance interval leaves steps without a second branch).
3. ``ordinal``: no context at all. The step and branch follow from the call's number within the run and the number of
   branches per step, cross-checked with the conditioning tensor and the timestep.

When the sources disagree the step is ``ambiguous`` and every technique that depends on it must compute densely.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from attrs import frozen

if TYPE_CHECKING:
    import torch

BRANCHES = {"cond": "cond", "pred_cond": "cond", "uncond": "uncond", "pred_uncond": "uncond"}
AMBIGUOUS = "ambiguous"


@frozen
class Step:
    """One transformer call's place in its run.

    ``index`` counts solver steps from 0 over all experts; ``total`` is the number of solver steps (0: unknown).
    ``timestep`` is the tensor that the transformer was given, ``[B]``, per token ``[B, L]`` or per frame
    ``[B, 1, T, 1, 1]``. ``grid`` is the token grid (frames, height, width) after patching. ``gradients`` says whether a
    backward pass could go through the call, as far as the family tells.
    """

    index: int
    total: int
    branch: str
    expert: str
    source: str
    timestep: torch.Tensor
    grid: tuple[int, int, int]
    gradients: bool = False

    @property
    def ambiguous(self) -> bool:
        """Whether step and branch could not be told: what depends on them computes densely."""
        return self.source == AMBIGUOUS


@frozen
class Context:
    """What ``cache_context`` was entered with."""

    name: str
    step_index: int | None = None
    num_inference_steps: int | None = None


class IdentityTracker:
    """Resolves the identity of each call of one run.

    ``timesteps`` is the run's schedule (empty: unknown) and ``branches`` the number of calls per step when no context
    is entered (1 or 2). Nothing is read back from a device: a timestep is compared with the schedule only where it
    lies in host memory.
    """

    def __init__(self, timesteps: tuple[float, ...], total: int, branches: int) -> None:
        self.sources: dict[str, int] = {}
        self._timesteps = timesteps
        self._total = total or len(timesteps)
        self._branches = branches
        self._context: Context | None = None
        self._leader = ""
        self._index = -1
        self._calls = 0
        self._conditioning: dict[int, str] = {}

    def enter(self, context: Context | None) -> None:
        """A context was entered, or left with None. The first branch of a run leads: it alone counts the steps."""
        self._context = context
        if context is None or context.step_index is not None:
            return
        branch = BRANCHES.get(context.name, context.name)
        self._leader = self._leader or branch
        if branch == self._leader:
            self._index += 1

    def resolve(
        self,
        expert: str,
        timestep: torch.Tensor,
        conditioning: torch.Tensor,
        grid: tuple[int, int, int],
        gradients: bool = False,
    ) -> Step:
        """The place of one call; counts the source that it was told by."""
        index, total, branch, source = self._place(timestep, conditioning)
        self.sources[source] = self.sources.get(source, 0) + 1
        return Step(index, total, branch, expert, source, timestep, grid, gradients)

    def summary(self) -> str:
        """The report's ``identity``: the sources used, the ambiguous one first."""
        return ", ".join(sorted(self.sources, key=lambda source: source != AMBIGUOUS)) or "no calls"

    def _place(self, timestep: torch.Tensor, conditioning: torch.Tensor) -> tuple[int, int, str, str]:
        context = self._context
        if context is None:
            return self._by_ordinal(timestep, conditioning)
        branch = BRANCHES.get(context.name, context.name)
        if context.step_index is not None:
            return context.step_index, context.num_inference_steps or self._total, branch, "context"
        self._catch_up(timestep)
        agrees = self._agrees(self._index, timestep)
        return self._index, self._total, branch, "context-name" if agrees else AMBIGUOUS

    def _by_ordinal(self, timestep: torch.Tensor, conditioning: torch.Tensor) -> tuple[int, int, str, str]:
        index, ordinal = divmod(self._calls, self._branches)
        self._calls += 1
        branch = ("cond", "uncond")[ordinal]
        seen = self._conditioning.setdefault(conditioning.data_ptr(), branch)
        agrees = seen == branch and self._agrees(index, timestep)
        if self._branches == 1 and len(self._conditioning) > 1:
            agrees = False
        return index, self._total, branch, "ordinal" if agrees else AMBIGUOUS

    def _catch_up(self, timestep: torch.Tensor) -> None:
        """The driver left steps out: go on to the one later step that the timestep names."""
        if self._agrees(self._index, timestep):
            return
        value = float(timestep.max())
        later = [i for i in range(self._index, len(self._timesteps)) if _same(self._timesteps[i], value)]
        if len(later) == 1:
            self._index = later[0]

    def _agrees(self, index: int, timestep: torch.Tensor) -> bool:
        """Whether the timestep is the schedule's at ``index``, as far as can be told without asking a device."""
        if not self._timesteps or timestep.device.type != "cpu":
            return True
        return index < len(self._timesteps) and _same(self._timesteps[index], float(timestep.max()))


def _same(left: float, right: float) -> bool:
    return abs(left - right) <= 1e-3 * max(1.0, abs(left))
