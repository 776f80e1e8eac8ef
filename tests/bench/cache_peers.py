"""The caches of diffusers and cache-dit, put on a pipeline of their own: what ours are measured beside."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

Peer = Callable[[Any, int], None]
"""``peer(pipe, steps)`` turns a cache on, in place: the pipeline is a copy that is thrown away."""


def first_block(threshold: float) -> Peer:
    """diffusers FirstBlockCache: ours is ``firstblock``."""

    def turn_on(pipe: Any, steps: int) -> None:
        from diffusers import FirstBlockCacheConfig

        pipe.transformer.enable_cache(FirstBlockCacheConfig(threshold=threshold))

    return turn_on


def mag(threshold: float, max_skip: int, ratios: Sequence[float], retention: float = 0.2) -> Peer:
    """diffusers MagCache, with the ratios that ours has: ours is ``magcache``."""

    def turn_on(pipe: Any, steps: int) -> None:
        from diffusers import MagCacheConfig

        pipe.transformer.enable_cache(
            MagCacheConfig(
                threshold=threshold,
                max_skip_steps=max_skip,
                retention_ratio=retention,
                num_inference_steps=steps,
                mag_ratios=list(ratios),
            )
        )

    return turn_on


def taylor(interval: int, first: int) -> Peer:
    """diffusers TaylorSeer in its lite form (the blocks' last output is continued): ours is ``taylorseer``.

    Its default patterns match no module of Wan, so that the modules are named here: every block returns nothing on a
    predicted step, and the output projection is continued.
    """

    def turn_on(pipe: Any, steps: int) -> None:
        import torch
        from diffusers import TaylorSeerCacheConfig

        pipe.transformer.enable_cache(
            TaylorSeerCacheConfig(
                cache_interval=interval,
                disable_cache_before_step=first,
                max_order=1,
                taylor_factors_dtype=torch.float32,
                skip_predict_identifiers=[r"blocks\.\d+"],
                cache_identifiers=["proj_out"],
            )
        )

    return turn_on


def block_taylor(interval: int, first: int) -> Peer:
    """diffusers TaylorSeer on every attention and feed-forward: ours is ``blocktaylorseer``."""

    def turn_on(pipe: Any, steps: int) -> None:
        import torch
        from diffusers import TaylorSeerCacheConfig

        pipe.transformer.enable_cache(
            TaylorSeerCacheConfig(
                cache_interval=interval,
                disable_cache_before_step=first,
                max_order=1,
                taylor_factors_dtype=torch.float32,
                cache_identifiers=[r"blocks\.\d+\.attn1", r"blocks\.\d+\.attn2", r"blocks\.\d+\.ffn"],
            )
        )

    return turn_on


def dbcache(threshold: float, front: int = 1, tail: int = 0, warm_up: int = 4, taylor: bool = False) -> Peer:
    """cache-dit DBCache; with ``front`` 1 and ``tail`` 0 ours is ``firstblock``, else ``dualblock``."""

    def turn_on(pipe: Any, steps: int) -> None:
        import cache_dit

        cache_dit.enable_cache(
            pipe,
            cache_config=cache_dit.DBCacheConfig(
                Fn_compute_blocks=front,
                Bn_compute_blocks=tail,
                max_warmup_steps=warm_up,
                residual_diff_threshold=threshold,
                num_inference_steps=steps,
            ),
            calibrator_config=cache_dit.TaylorSeerCalibratorConfig(taylorseer_order=1) if taylor else None,
        )

    return turn_on


@contextlib.contextmanager
def counting_blocks(transformer: Any) -> Iterator[list[int]]:
    """Forwards in which the middle block's self-attention really ran: hooks on blocks run on a skip too."""
    seen: list[int] = []
    blocks = transformer.blocks
    projection = blocks[len(blocks) // 2].attn1.to_q
    handle = projection.register_forward_pre_hook(lambda *_: seen.append(1))
    try:
        yield seen
    finally:
        handle.remove()
