"""Comparisons made by hand, for what is computed from them."""

from __future__ import annotations

from typing import Any

from wf_core.comparing.measures import Measures
from wf_core.comparing.outcome import Comparison, Row, Side

BRANCHES = {
    "transformer/cond": {
        "computed": [0, 2],
        "skipped": [1, 3],
        "reasons": {"0": "first-steps", "1": "a<b & c", "2": "changed", "3": "unchanged"},
        "shares": {"3": 0.25},
    }
}
REPORT: dict[str, Any] = {
    "plan": "0" * 16,
    "steps": {
        "forwards": {"called": 8, "computed": 4},
        "caches": {"nth": {"computed": 2, "skipped": 2, "branches": BRANCHES}},
    },
    "run": {
        "facts": {
            "run.num_inference_steps": 4,
            "run.guidance_scale": 3.0,
            "run.height": 16,
            "run.width": 16,
            "run.num_frames": 5,
        }
    },
}


def measures(psnr: float | None = 30.0, **more: Any) -> Measures:
    return Measures(**{"identical": psnr is None, "psnr": psnr, "ssim": 0.9, "latent_cosine": 0.99, **more})


def comparison(*psnrs: float | None, computed: float = 4.0, **more: Any) -> Comparison:
    """One row for each PSNR; 8 forwards of the plain run."""
    rows = tuple(Row(f"prompt {number}", number, measures(psnr)) for number, psnr in enumerate(psnrs))
    fields: dict[str, Any] = {
        "request": {"feature_cache": "nth"},
        "rows": rows,
        "plain": Side((4.0,), (None,), (8.0,)),
        "accelerated": Side((2.0,), (None,), (computed,)),
        "report": REPORT,
        "unavailable": {"lpips": "not here"},
    }
    return Comparison(**{**fields, **more})
