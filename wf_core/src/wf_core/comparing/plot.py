"""The frontier of a sweep: what is lost against what is computed, one series for each feature."""

from __future__ import annotations

import io
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

TITLE = "PSNR of the worst prompt (filled), mean (hollow)"
MARKERS = "osD^"
"""One for every ten features, whose colours begin anew."""


def frontier_svg(rows: Sequence[Mapping[str, Any]]) -> str:
    """An SVG of the rows of a sweep: the share of transformer forwards computed, in percent, against PSNR in dB.

    Rows whose clips are identical to the plain ones have no finite PSNR, and are left out. The same rows give the
    same text.
    """
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context({"svg.hashsalt": "wf", "svg.fonttype": "none", "font.size": 10}):
        figure = Figure(figsize=(8.6, 4.8), layout="constrained")
        axes = figure.subplots()
        for number, (feature, points) in enumerate(sorted(series(rows).items())):
            shares, worst, mean = zip(*points, strict=True)
            look: dict[str, Any] = {
                "color": f"C{number % 10}",
                "marker": MARKERS[number // 10 % len(MARKERS)],
            }
            axes.plot(shares, worst, label=_literal(feature), linestyle=":", **look)
            axes.plot(shares, mean, linestyle="none", fillstyle="none", **look)
        axes.set(xlabel="transformer forwards computed, % of the plain run's", ylabel="PSNR, dB", title=TITLE)
        axes.axvline(50, color="0.6", linewidth=0.8, linestyle=":")
        axes.grid(alpha=0.25)
        if axes.get_legend_handles_labels()[0]:
            axes.legend(frameon=False, loc="upper left", bbox_to_anchor=(1.0, 1.0))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None}, transparent=True)
    return text.getvalue()


def series(rows: Iterable[Mapping[str, Any]]) -> dict[str, list[tuple[float, float, float]]]:
    """By feature the points (share computed in percent, worst PSNR, mean PSNR), in order of the share."""
    found: dict[str, list[tuple[float, float, float]]] = {}
    for row in rows:
        if row["psnr"] is not None:
            share = 100 * row["steps_computed"] / row["steps_total"]
            found.setdefault(row["feature"], []).append((share, row["psnr"], row["psnr_mean"]))
    return {feature: sorted(points) for feature, points in found.items()}


def _literal(text: str) -> str:
    """A label that is not read as mathematics, nor left out of the legend."""
    return text.replace("$", r"\$").lstrip("_") or "?"
