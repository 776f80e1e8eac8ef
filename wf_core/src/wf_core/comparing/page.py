"""A comparison, or a sweep, as one HTML page: clips, plot and decisions are in the file, nothing is fetched."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wf_core.resolving.plan import shown_request

if TYPE_CHECKING:
    from wf_core.comparing.outcome import Comparison
    from wf_core.comparing.pictures import Pair

NUMBERS = {
    "steps_computed": "forwards computed",
    "steps_total": "forwards of the plain run",
    "speedup": "speedup",
    "seconds": "seconds",
    "plain_seconds": "seconds, plain",
    "peak_bytes": "peak bytes",
    "plain_peak_bytes": "peak bytes, plain",
    "psnr": "PSNR, worst prompt (dB)",
    "psnr_mean": "PSNR, mean (dB)",
    "ssim": "SSIM, worst prompt",
    "ssim_mean": "SSIM, mean",
    "latent_cosine": "latent cosine, worst prompt",
    "latent_cosine_mean": "latent cosine, mean",
    "lpips": "LPIPS, worst prompt",
    "vmaf": "VMAF, worst prompt",
    "prompt_score": "prompt score",
    "plain_prompt_score": "prompt score, plain",
}
ROUGH = ("speedup", "seconds", "plain_seconds")
"""One timed run each: digits beyond these say nothing."""
OF_A_PROMPT = ("psnr", "ssim", "latent_cosine", "lpips", "vmaf")


def page(title: str, comparisons: Sequence[Comparison], *, pairs: Iterable[Pair] = (), plot: str = "") -> str:
    """The whole page. ``pairs`` are the clips of the one comparison, ``plot`` the SVG of a sweep."""
    frame = Path(__file__).with_name("page.html").read_text(encoding="utf-8")
    parts = {
        "title": escape(title),
        "plot": _figure(plot),
        "clips": "".join(_clips(pair) for pair in pairs),
        "sections": "".join(_section(comparison) for comparison in comparisons),
    }
    for name, text in parts.items():
        frame = frame.replace(f"<!--{name}-->", text)
    return frame


def _figure(svg: str) -> str:
    """The drawing without the lines before it, which belong to a file of its own."""
    return f"<figure>{svg[svg.index('<svg') :]}</figure>" if svg else ""


def _clips(pair: Pair) -> str:
    return (
        f'<section class="pair"><h2>{escape(pair.prompt)}</h2><div>'
        f"<figure>{_video(pair.plain)}<figcaption>plain</figcaption></figure>"
        f"<figure>{_video(pair.accelerated)}<figcaption>accelerated</figcaption></figure></div></section>"
    )


def _video(path: Path) -> str:
    data = base64.b64encode(path.read_bytes()).decode("ascii")
    return f'<video controls loop muted autoplay playsinline src="data:video/mp4;base64,{data}"></video>'


def _section(comparison: Comparison) -> str:
    request = shown_request(sorted(comparison.request.items()))
    return (
        f"<section><h2><code>{escape(request)}</code></h2>"
        + _table(comparison)
        + "".join(_strips(comparison.report["steps"]))
        + _prompts(comparison)
        + "</section>"
    )


def _table(comparison: Comparison) -> str:
    numbers = comparison.numbers()
    cells = (
        f'<tr><th scope="row">{escape(said)}</th><td>{shown(numbers, name)}</td></tr>'
        for name, said in NUMBERS.items()
    )
    missing = (f"<p>no {escape(name)}: {escape(why)}</p>" for name, why in comparison.unavailable.items())
    return f'<table class="numbers">{"".join(cells)}</table>{"".join(missing)}'


def _prompts(comparison: Comparison) -> str:
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in ("prompt", *OF_A_PROMPT, "shows"))
    rows = []
    for row in comparison.rows:
        values = row.to_json()
        cells = "".join(f"<td>{shown(values, name)}</td>" for name in OF_A_PROMPT)
        rows.append(
            f'<tr><th scope="row">{escape(row.prompt)}</th>{cells}<td>{escape(_right(row.score))}</td></tr>'
        )
    return f'<table class="prompts"><tr>{head}</tr>{"".join(rows)}</table>'


def _right(score: Mapping[str, bool] | None) -> str:
    return ", ".join(f"{kind} {'right' if hit else 'wrong'}" for kind, hit in (score or {}).items())


def shown(numbers: Mapping[str, Any], name: str) -> str:
    """One of the numbers for a cell; where there is none, a word or a dash."""
    value = numbers[name]
    if value is None:
        return "identical" if name.startswith("psnr") and numbers["identical"] else "\N{EN DASH}"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:.2f}" if name in ROUGH else f"{value:.5g}"


# --- the decisions -----------------------------------------------------------------------------------------------


def _strips(steps: Mapping[str, Any]) -> Iterator[str]:
    """For each cache and branch one row with a cell for each step; a cell's tooltip is the reason."""
    caches = steps.get("caches", {})
    if not caches:
        yield "<p>No cache: every step was computed.</p>"
    for feature, cache in caches.items():
        rows = (_strip(branch, row) for branch, row in cache["branches"].items())
        yield f'<h3>{escape(feature)}</h3><table class="strip">{"".join(rows)}</table>'


def _strip(branch: str, row: Mapping[str, Any]) -> str:
    skipped, shares = {*row["skipped"]}, row.get("shares", {})
    cells = []
    for step in sorted({*row["computed"], *skipped}):
        word = "skipped" if step in skipped else "computed"
        part = f"{shares[str(step)]:.0%} of the blocks" if str(step) in shares else word
        said = f"step {step}: {part}, {row['reasons'].get(str(step), '')}"
        look = "part" if str(step) in shares else word
        cells.append(f'<td class="{look}" title="{escape(said)}">{step}</td>')
    return f'<tr><th scope="row">{escape(branch)}</th>{"".join(cells)}</tr>'
