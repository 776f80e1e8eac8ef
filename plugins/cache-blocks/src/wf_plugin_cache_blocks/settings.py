"""The options of the three features as one frozen value. No torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from wf_core.api import Window
from wf_plugin_cache_blocks.rule import Parts, Rule


@dataclass(frozen=True, slots=True)
class Settings:
    """What the user asked for. ``parts`` says which blocks of `firstblock` and `dualblock` always run.

    ``reference`` is ``computed`` or ``previous``; ``decide`` (dynamicblock) is ``previous-call`` or ``each-block``.
    """

    threshold: float
    downsample: int
    reference: str
    window: Window
    parts: Parts
    max_skip: int | None = None
    decide: str = "previous-call"

    @classmethod
    def of(cls, feature: str, options: Mapping[str, Any]) -> Settings:
        """The settings of one feature from its options as the manifest declares them, defaults filled in."""
        dual = feature == "dualblock"
        return cls(
            threshold=options["residual_diff_threshold"],
            downsample=options["downsample_factor"],
            reference=options["reference"],
            window=Window(options["first"], options["last"]),
            parts=Parts(options["front_blocks"], options["tail_blocks"]) if dual else Parts(1, 0),
            max_skip=options.get("max_skip"),
            decide=options.get("decide", "previous-call"),
        )

    def rule(self) -> Rule:
        """A fresh rule, for one branch or one block of it."""
        return Rule(self.threshold, self.max_skip)

    def refreshes(self, computed: bool) -> bool:
        """Whether what a call shows becomes the reference of the next one."""
        return computed or self.reference == "previous"
