"""The wiring of one session: its seams and the run that is open. What a model family is installed against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.errors import PluginFault
from wf_core.kinds.serving import served_by
from wf_core.model.seams import Seams, Site

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.techniques import Technique
    from wf_core.model.identity import Context, Step
    from wf_core.sessions.run import Run


class Wiring:
    """Shared by the session and the copies' roots. ``run`` is None between runs."""

    def __init__(
        self,
        seams: Seams,
        techniques: Mapping[str, Technique] | None = None,
        effects: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self.seams = seams
        self.techniques: Mapping[str, Technique] = techniques or {}
        self.effects: Mapping[str, frozenset[str]] = effects or {}
        """The names of the effects that each technique's feature has here; none of one that no manifest declares."""
        self.run: Run | None = None
        self.begin_schedule: Callable[[tuple[float, ...]], None] = _no_schedule
        self._closed = False
        self._step: Step | None = None

    def now(self) -> Step | None:
        """The identity of the transformer call in progress; None outside one."""
        return self._step

    def bind_schedule(self) -> None:
        """Bind the claims of the ``scheduler`` seam; the host calls ``begin_schedule(timesteps)`` once per run."""
        self.begin_schedule = self.wrap("scheduler", _no_schedule)

    def enter_context(self, context: Context | None) -> None:
        """The pipeline entered (or left, with None) a cache context."""
        if self.run is not None:
            self.run.identity.enter(context)

    def call(
        self,
        expert: str,
        timestep: torch.Tensor,
        conditioning: torch.Tensor,
        grid: tuple[int, int, int],
        compute: Callable[[], Any],
        gradients: bool = False,
    ) -> Any:
        """Run one transformer call with its identity known; counted per expert and branch. ``gradients``: whether a
        backward pass could go through it.
        """
        run = self._open_run()
        step = run.identity.resolve(expert, timestep, conditioning, grid, gradients)
        run.count_call(step)
        self._step = step
        try:
            with served_by(self.techniques):
                return compute()
        finally:
            self._step = None

    def wrap(self, seam: str, stock: Callable[..., Any], **site: Any) -> Callable[..., Any]:
        """``stock`` with the claims of ``seam`` around it; the keywords are the fields of ``Site``."""
        return self.seams.wrap(Site(seam, **site), stock)

    def close(self) -> None:
        """The session is closed: a copy that somebody kept says so when it is called."""
        self._closed = True
        self.run = None
        self.seams = Seams()
        self.techniques = {}
        self.effects = {}
        self.begin_schedule = _no_schedule

    def require(self, result: object, shape: tuple[int, ...], *seams: str) -> None:
        """What came out of claimed seams must be a tensor of the stock shape: broadcasting would hide a wrong one.

        Raises ``PluginFault`` that names the features that claim them. Looks at nothing on the device.
        """
        found = tuple(getattr(result, "shape", ())) or type(result).__name__
        if found != shape:
            who = ", ".join(name for seam in seams for name in self.seams.claimants(seam))
            raise PluginFault(who, " > ".join(seams), f"must give a tensor of shape {shape}, not {found}")

    def _open_run(self) -> Run:
        if self._closed:
            raise RuntimeError("this model belongs to a session that is closed; open a new one")
        if self.run is None:
            raise RuntimeError(
                "this model belongs to a session and was called outside a run; call s.pipe(...), or enter s.run(...)"
            )
        return self.run


def _no_schedule(timesteps: tuple[float, ...]) -> None:
    """The stock computation of the ``scheduler`` seam: there is none, it is read only."""
