"""Prompts in batches, each prompt with the seed of its noise."""

from __future__ import annotations

from collections.abc import Sequence

import attrs

from wf_core.errors import BadInput

SEEDS = 2**63


@attrs.frozen
class Batch:
    """Prompts that are run in one call. The noise of prompt i is drawn from the seed ``seed + i``."""

    prompts: tuple[str, ...]
    seed: int


def batches(prompts: Sequence[str], size: int, seed: int) -> list[Batch]:
    """Prompts in batches of ``size``, each with the seed of its first prompt; a last seed out of range is refused."""
    if seed + len(prompts) > SEEDS:
        raise BadInput(
            f"--seed {seed} is too large for {len(prompts)} prompts, each of which takes the next one"
        )
    return [Batch(tuple(prompts[at : at + size]), seed + at) for at in range(0, len(prompts), size)]
