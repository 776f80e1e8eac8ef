"""What a verification found: one row per provider and dtype."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import asdict, frozen

from wf_core.manifests.vocabulary import SCHEMA

VERDICTS = ("ok", "exceeds", "unavailable")


@frozen
class Worst:
    """The largest error of a measure (the smallest cosine), and the call that gave it."""

    value: float
    at: str


@frozen
class Finding:
    """A provider in one dtype. ``dtype`` is "" where it cannot be used at all.

    ``why`` is the reason of every verdict but "ok". ``inputs`` were served and compared; ``calls`` counts every call
    that the kernel served; ``ineligible`` are the reasons of those that it would not serve, counted.
    """

    feature: str
    plugin: str
    tier: str
    verdict: str
    why: str = ""
    dtype: str = ""
    inputs: int = 0
    calls: int = 0
    ineligible: Mapping[str, int] = {}
    worst: Mapping[str, Worst] = {}
    limits: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """``math in bfloat16``."""
        return f"{self.feature} in {self.dtype}" if self.dtype else self.feature

    def to_json(self) -> dict[str, Any]:
        """As plain values."""
        return asdict(self)


@frozen
class Verification:
    """All findings, with what they were found on."""

    device: str
    device_name: str
    dtypes: tuple[str, ...]
    inputs: int
    seed: int
    findings: tuple[Finding, ...]

    def of(self, verdict: str) -> tuple[Finding, ...]:
        """The findings with a verdict."""
        return tuple(finding for finding in self.findings if finding.verdict == verdict)

    def to_json(self) -> dict[str, Any]:
        """What ``wf verify attention --json`` prints."""
        own = {"device": self.device, "device_name": self.device_name, "dtypes": list(self.dtypes)}
        return {
            "schema": SCHEMA,
            "verified": "attention",
            **own,
            "inputs": self.inputs,
            "seed": self.seed,
            "holds": not self.of("exceeds"),
            "findings": [finding.to_json() for finding in self.findings],
        }
