"""How far an output may be from float64: the bound of the feature's manifest, else what kernels of its tier keep."""

from __future__ import annotations

from attrs import frozen

from wf_core.manifests.declarations import FeatureDecl
from wf_core.verifying.checks import Errors

MEASURED = ("relative-l2", "max-abs")
"""Measures of a manifest's bounds that make sense for one attention call; psnr is about clips."""
COMMON = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}
"""Relative L2 error of exact attention, whatever the kernel: rounding of inputs, probabilities and output."""
ALIKE = {"bfloat16": 0.9999}
LOSSY = 0.998
"""Cosine that 8-bit scores with 8-bit values keep on normal values (SageAttention 2, arXiv 2411.10958)."""


@frozen
class Limit:
    """One bound: of a measure of `Errors`, at most ``value``, or at least for the cosine; ``source`` says whose."""

    measure: str
    value: float
    source: str

    def kept(self, errors: Errors) -> bool:
        """Whether the errors are within it."""
        got = self.of(errors)
        return got >= self.value if self.measure == "cosine" else got <= self.value

    def of(self, errors: Errors) -> float:
        """What it looks at."""
        return float(getattr(errors, self.measure.replace("-", "_")))

    def __str__(self) -> str:
        return f"{self.measure} at {'least' if self.measure == 'cosine' else 'most'} {self.value:g} ({self.source})"


def limits(feature: FeatureDecl, device: str, dtype: str) -> tuple[Limit, ...]:
    """The manifest's bounds for a kind of device and a dtype; where it has none, those of the feature's tier."""
    own = [
        Limit(bound.measure, bound.value, "its manifest")
        for bound in feature.bounds
        if (bound.device, bound.dtype) == (device, dtype) and bound.measure in MEASURED
    ]
    if own:
        return tuple(own)
    tier = f"tier {feature.tier}"
    if feature.tier == "approximate":
        return (Limit("cosine", LOSSY, tier),)
    common = (Limit("relative-l2", COMMON[dtype], tier),)
    return common + ((Limit("cosine", ALIKE[dtype], tier),) if dtype in ALIKE else ())
