"""How much ``blocktaylorseer`` keeps, and when that surely cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from wf_core.api import Facts, RunView

ELEMENT_BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
OF_THREE = ("wan", "cosmos")
"""Families whose blocks have self-attention, cross-attention and feed-forward."""


def kept_bytes(outputs: int, hidden_state: int, element_bytes: int, samples: int, branches: int) -> int:
    """Bytes kept once ``samples`` steps (the order + 1, or all that are computed) were, of that many ``outputs``.

    ``hidden_state`` is the number of elements of one hidden state, ``B * L * D``; ``branches`` those of guidance. Of
    two experts only the running one counts: the other's are released.
    """
    return outputs * samples * hidden_state * element_bytes * branches


def why_too_large(run: RunView, samples: int) -> str:
    """One sentence when the sequences alone exceed the memory of all devices; "" when not, or not known.

    Judged only where one process serves the whole run: several hold a part of the tokens or of the branches each.
    """
    facts = run.facts
    elements = _hidden_state(facts)
    size = ELEMENT_BYTES.get(str(facts.get("model.dtype")))
    layers, memory = facts.get("model.layers"), facts.get("device.memory_bytes")
    if not (elements and size and layers and memory) or facts.get("process.world") != 1:
        return ""
    outputs = _outputs(facts, layers)
    if not outputs:
        return ""
    needed = kept_bytes(outputs, elements, size, samples, run.branches)
    there = memory * max(1, facts.get("device.count") or 1)
    if needed <= there:
        return ""
    return (
        f"blocktaylorseer would keep {needed / 1e9:.1f} GB ({outputs} outputs of blocks, {samples} tensors of "
        f"{elements * size / 1e6:.0f} MB for each, {run.branches} branches), and all the device memory there is are "
        f"{there / 1e9:.1f} GB: use taylorseer, which keeps {samples} such tensors per branch, a lower order or a "
        "smaller clip."
    )


def _outputs(facts: Facts, layers: int) -> int:
    """Outputs of a hidden state's size at least, of families whose blocks are known; 0 for another family.

    Three of a block, VACE's control blocks among them; where text and latent are two streams two, and one of a block in
    which they are one.
    """
    family = facts.get("model.family")
    if family == "hunyuan":
        return 2 * layers + int(facts.get("model.single_layers") or 0)
    if family in OF_THREE:
        return 3 * (layers + len(facts.get("model.vace_layers") or ()))
    return 0


def _hidden_state(facts: Facts) -> int:
    """Elements ``B * L * D`` of one hidden state; 0 where a fact is missing."""
    elements = 1
    for name in ("run.batch", "run.tokens", "model.heads", "model.head_dim"):
        elements *= int(facts.get(name) or 0)
    return elements
