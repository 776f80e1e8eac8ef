"""What the three caches share: a call that ``stack`` opens and closes, and in which ``block`` decides."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from wf_core.api import Decision, FeatureCache, relative_l1
from wf_plugin_cache_blocks.settings import Settings

if TYPE_CHECKING:
    import torch

    from wf_core.api import CacheState, Handler, RunView, Site, Step

Inner = Callable[[Any], Any]


class Call(ABC):
    """One transformer call in progress. ``seen`` blocks were reached, ``ran`` of them computed."""

    def __init__(self) -> None:
        self.seen = 0
        self.ran = 0

    @abstractmethod
    def block(self, inner: Inner, index: int, hidden_states: torch.Tensor) -> torch.Tensor:
        """What block ``index`` gives for hidden states ``[B, L, D]``, computed by ``inner`` or not."""

    @abstractmethod
    def close(self) -> Decision:
        """All blocks were reached: keep what the next call needs. Returns what was decided."""

    def run(self, inner: Inner, hidden_states: torch.Tensor) -> torch.Tensor:
        """Compute a block."""
        self.ran += 1
        output: torch.Tensor = inner(hidden_states)
        return output


class BlockCache(FeatureCache):
    """A cache at ``stack`` and ``block``.

    Counts ``computed`` and ``skipped`` calls (a call is skipped when one block or more is), ``blocks_computed``,
    ``blocks_skipped``, and ``host_syncs``, the waits for the device.
    """

    def __init__(self, settings: Settings) -> None:
        super().__init__()
        self.settings = settings
        self.differences: list[float] = []
        """Every finite difference that was compared with the threshold in this run."""
        self._call: Call | None = None

    @abstractmethod
    def open(self, state: Any, step: Step, hidden_states: torch.Tensor) -> Call:
        """A call begins with hidden states ``[B, L, D]``."""

    @property
    def warm_up(self) -> int:
        """Steps of a branch that are computed before anything can be decided."""
        return 1

    def handlers(self) -> Mapping[str, Handler]:
        return {"stack": self._stack, "block": self._block}

    def begin(self, run: RunView) -> None:
        super().begin(run)
        self._call = None
        self.differences = []
        total, window = run.num_inference_steps, self.settings.window
        if 0 < total <= max(window.first, self.warm_up) + window.last:
            self.counters.fall_back(
                "stack",
                f"all {total} steps are computed: the first {max(window.first, self.warm_up)} and the last "
                f"{window.last} always are",
            )

    def end(self) -> None:
        super().end()
        self._call = None

    def evidence(self) -> Mapping[str, object]:
        found = sorted(self.differences)
        if not found:
            return {}
        at = {f"p{percent}": found[(len(found) - 1) * percent // 100] for percent in (10, 25, 50, 75, 90)}
        return {"differences": {"count": len(found), **at}}

    def read_back(self, distances: torch.Tensor) -> list[float]:
        """The numbers in a device tensor: one wait for the device, counted."""
        self.counters.add("host_syncs")
        numbers: list[float] = distances.flatten().tolist()
        self.differences += [number for number in numbers if number - number == 0.0]
        return numbers

    def _stack(self, inner: Inner, site: Site, hidden_states: torch.Tensor) -> torch.Tensor:
        _, step = self.now()
        state: CacheState = self.state(step)
        try:
            call = self._call = self.open(state, step, hidden_states)
            output: torch.Tensor = inner(hidden_states)
            decision = call.close()
        except BaseException:
            self.forget()  # half a call is nothing to compare with
            raise
        finally:
            self._call = None
        if step.ambiguous:
            self.forget()
        self.counters.add("blocks_computed", call.ran)
        self.counters.add("blocks_skipped", call.seen - call.ran)
        self.record(step, decision, self._share(call))
        return output

    def _share(self, call: Call) -> float:
        """The part of the blocks that ran; control blocks, which no ``block`` handler sees, run at every call."""
        run, _ = self.now()
        always = len(run.facts.get("model.vace_layers") or ())
        return (call.ran + always) / (call.seen + always) if call.seen else 1.0

    def _block(self, inner: Inner, site: Site, hidden_states: torch.Tensor) -> torch.Tensor:
        if self._call is None:
            output: torch.Tensor = inner(hidden_states)
            return output
        self._call.seen += 1
        return self._call.block(inner, site.index, hidden_states)


def sampled(hidden_states: torch.Tensor, factor: int) -> torch.Tensor:
    """Every ``factor``-th channel, ``[B, L, D]`` -> ``[B, L, ceil(D / factor)]``: a view, not to be kept."""
    return hidden_states[..., ::factor]


def worst_of(current: torch.Tensor, older: torch.Tensor) -> torch.Tensor:
    """The relative L1 change of the sample that changed most, NaN if one is NaN; one fp32 number on the device."""
    return relative_l1(current, older).max()
