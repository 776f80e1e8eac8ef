"""The tables of docs/performance.md that come from docs/performance.json."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pages.markdown import code, prose, table
from pages.marked import fill
from pages.repository import ROOT

PAGE, DATA = "docs/performance.md", "docs/performance.json"
DENOISERS = {
    "wan_1_3b_480p": "Wan2.1-T2V-1.3B, 832x480x81",
    "wan_ti2v_5b_704p": "Wan2.2-TI2V-5B, 1280x704x121",
    "wan_14b_480p": "Wan2.1-T2V-14B, 832x480x81",
}
FAMILIES = {
    "hunyuanvideo_720p": "HunyuanVideo, 1280x720x129",
    "hunyuanvideo15_480p": "HunyuanVideo-1.5 T2V, 848x480x121",
    "cosmos_predict2_2b_704p": "Cosmos-Predict2-2B Video2World, 1280x704x93",
}
SUBJECTS = {
    "stock": "stock, as `from_pretrained(dtype=...)` loads it",
    "stock_cast_whole": "stock, cast whole by `.to(bfloat16)`",
    "stock_compiled": "stock, blocks compiled",
    "session": "a session with nothing in it",
    "ours_exact": "the exact stack",
    "ours_exact_compiled": "the exact stack, blocks compiled",
}


def page() -> str:
    """The page with its tables written anew."""
    found = json.loads((ROOT / DATA).read_text(encoding="utf-8"))
    return fill(
        PAGE,
        {
            "machine": lambda: _machine(found),
            "forwards": lambda: _forwards(found),
            "numerics": lambda: _numerics(found),
            "families": lambda: families(found.get("families", {})),
            "family-numerics": lambda: family_numerics(found.get("families", {})),
            "mask-memory": lambda: mask_memory(found.get("families", {})),
            "attention": lambda: _attention(found["attention"]),
            "kernels": lambda: _kernels(found),
            "caches": lambda: _caches(found["cache_dense_step"]),
            "not-measured": lambda: _not_measured(found["not_measured"]),
        },
    )


def _not_measured(what: Iterable[str]) -> str:
    named = "; ".join(what)
    return prose(
        f"Not measured yet: {named}." if named else "All that this page sets a target for was measured."
    )


def _machine(found: Mapping[str, Any]) -> str:
    versions = ", ".join(f"{n} {found[n]}" for n in ("torch", "triton", "diffusers", "cudnn", "flash_attn_4"))
    return prose(f"{found['card']}, {found['date']}: {versions}.")


def _measured(found: Mapping[str, Any]) -> Iterable[tuple[str, Mapping[str, Any]]]:
    return ((title, found[name]) for name, title in DENOISERS.items() if found.get(name))


def _forwards(found: Mapping[str, Any]) -> str:
    rows: list[Sequence[str]] = []
    for title, forward in _measured(found):
        for subject, text in SUBJECTS.items():
            ms = forward.get(f"{subject}_ms")
            if ms is not None:
                ratio = f"{ms / forward['stock_ms']:.3f}"
                rows.append((title, text, f"{ms:.1f}", ratio, f"{forward[f'{subject}_peak_mib']}"))
    return table(("one forward", "stack", "ms", "of stock", "peak MiB beside the weights"), rows)


def _numerics(found: Mapping[str, Any]) -> str:
    rows = []
    for title, forward in _measured(found):
        n = forward["numerics"]
        errors = [f"{n[key]:.5f}" for key in ("stock_error", "ours_error")]
        rows.append((title, str(n["tokens"]), *errors, f"{n['ratio']:.4f}", f"{n['worst_block_ratio']:.4f}"))
    return table(("model", "tokens", "error of stock", "of ours", "ratio", "worst ratio after a block"), rows)


def families(found: Mapping[str, Any]) -> str:
    """The forwards of tests/bench/bench_families.py, with what they were measured on."""
    rows: list[Sequence[str]] = []
    for name, title in FAMILIES.items():
        rows += _forwards_of(found[name]) if name in found else [(title, "not measured yet", "", "", "")]
    heads = ("one forward", "stack", "ms", "of stock", "peak MiB beside the weights")
    return _on_which(found) + table(heads, rows)


def _forwards_of(forward: Mapping[str, Any]) -> Iterable[Sequence[str]]:
    blocks, of = forward["blocks"], forward["of_blocks"]
    title = forward["title"] + (f", {blocks} of {of} blocks" if blocks != of else "")
    for clip in forward["did_not_run"]:
        for subject, said in clip["failed"].items():
            yield clip["title"], SUBJECTS[subject], _why(said), "", ""
    for subject, text in SUBJECTS.items():
        ms = forward.get(f"{subject}_ms")
        if ms is not None:
            of_stock = f"{ms / forward['stock_ms']:.3f}"
            yield title, text, f"{ms:.1f}", of_stock, f"{forward[f'{subject}_peak_mib']}"


def _why(said: str) -> str:
    return "out of memory" if said.startswith("OutOfMemoryError") else "failed"


def _on_which(found: Mapping[str, Any]) -> str:
    if "machine" not in found:
        return ""
    names = ("torch", "triton", "diffusers", "cudnn", "flash_attn_4")
    versions = ", ".join(f"{name} {found['machine'][name]}" for name in names)
    return prose(f"{found['machine']['card']}, {found['machine']['date']}: {versions}.") + "\n"


def family_numerics(found: Mapping[str, Any]) -> str:
    """The errors of few blocks on a short clip, and how far the samples of the whole forward are apart."""
    rows: list[Sequence[str]] = []
    for name, title in FAMILIES.items():
        if name not in found:
            rows.append((title, "not measured yet", "", "", "", "", ""))
            continue
        n, taken = found[name]["numerics"], ", ".join(code(key) for key in found[name]["request"])
        errors = [f"{n[key]:.5f}" for key in ("stock_error", "ours_error")]
        apart = found[name]["difference"]
        difference = "" if apart is None else f"{apart:.1e}"
        rows.append((found[name]["title"], taken, str(n["tokens"]), *errors, f"{n['ratio']:.4f}", difference))
    heads = (
        "model",
        "asked for",
        "tokens",
        "error of stock",
        "of ours",
        "ratio",
        "whole forward, ours to stock",
    )
    return table(heads, rows)


def mask_memory(found: Mapping[str, Any]) -> str:
    """What the masks of a forward take, from tests/bench/mask_memory.py."""
    if "mask_memory" not in found:
        return prose("Not measured yet.")
    masks, rows = found["mask_memory"], []
    for subject in ("stock", "ours_exact"):
        of = masks[subject]
        if "failed" in of:
            rows.append((SUBJECTS[subject], _why(of["failed"]), "", ""))
        else:
            largest = (f"{of[key]:.1f}" for key in ("largest_mask_mib", "largest_mib"))
            rows.append((SUBJECTS[subject], f"{of['peak_mib']}", *largest))
    heads = (
        f"{masks['tokens']} + {masks['text_tokens']} tokens, {masks['blocks']} blocks",
        "peak MiB",
        "largest mask",
    )
    return table((*heads, "largest tensor"), rows)


def _attention(shapes: Mapping[str, Sequence[Mapping[str, Any]]]) -> str:
    rows = []
    for name, providers in shapes.items():
        for row in providers:
            numbers = ("ours_ms", "ours_tflops", "bare_tflops", "ours_over_bare")
            rows.append(
                (
                    DENOISERS[name],
                    code(row["provider"]),
                    *(f"{row[key]:g}" for key in numbers),
                    f"{row['relative_error']:.1e}",
                )
            )
    heads = ("shape of", "provider", "ms", "TFLOP/s", "bare call", "time over bare", "error")
    return table(heads, rows)


def _kernels(found: Mapping[str, Any]) -> str:
    rows = []
    for row in found["kernels"]:
        name = row["kernel"] + (f", {row['precision']}" if "precision" in row else "")
        name += ", two timesteps" if row["two_timesteps"] else ""
        rate = row["gb_per_s"]
        rows.append(
            (
                name,
                f"{row['tokens']} x {row['width']}",
                f"{row['stock_us']:.0f}",
                f"{row['ours_us']:.0f}",
                f"{rate:.0f}",
                f"{rate / found['copy_gb_per_s']:.2f}",
            )
        )
    for row in found["feed_forward"]:
        sizes = f"{row['tokens']} x {row['width']} to {row['hidden']}"
        rows.append(
            (
                "product with GELU",
                sizes,
                f"{1000 * row['stock_ms']:.0f}",
                f"{1000 * row['ours_ms']:.0f}",
                "",
                "",
            )
        )
    return table(("kernel", "tokens x width", "stock us", "ours us", "GB/s", "of a copy"), rows)


def _caches(found: Mapping[str, Any]) -> str:
    rows = [
        (name, f"{ratio:.3f}", ", ".join(f"{one:.3f}" for one in found["each_process"][name]))
        for name, ratio in found["over_stock"].items()
    ]
    return table(("installed, nothing skipped", "a step over the stock pipeline's", "in each process"), rows)
