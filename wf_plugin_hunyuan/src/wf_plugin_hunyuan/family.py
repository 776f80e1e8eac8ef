"""The adapter: which components a session owns, and how the claimed seams are put into its copies."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import nn

from wf_core.api import AttentionProvider, CallPlan, ModelFamily, Wiring
from wf_lib_family.closed import close_block, close_slot
from wf_lib_family.linear import close_linears, open_linears
from wf_lib_family.placement import place
from wf_lib_family.root import close_root, install_root, patches
from wf_lib_family.sites import wrapper
from wf_lib_family.vae import install_vae
from wf_plugin_hunyuan import calls, source
from wf_plugin_hunyuan.modulation import time_signals
from wf_plugin_hunyuan.open_attention import close_attention, open_attention
from wf_plugin_hunyuan.open_block import open_blocks
from wf_plugin_hunyuan.open_root import OpenRoot, OpenRoot15
from wf_plugin_hunyuan.run_memory import SLOT, forget
from wf_plugin_hunyuan.stock import ROOT, blocks_of, is_15

OWNED = (ROOT, "vae")


class HunyuanFamily(ModelFamily):
    """HunyuanVideo (text, and both forms of image to video) and HunyuanVideo-1.5."""

    def owned(self, base: Any) -> tuple[str, ...]:
        if isinstance(base, nn.Module):
            return (ROOT,)
        return tuple(name for name in OWNED if isinstance(getattr(base, name, None), nn.Module))

    def roots(self, components: Mapping[str, Any]) -> Mapping[str, nn.Module]:
        root = components.get(ROOT)
        return {} if root is None else {ROOT: root}

    def unavailable_seams(self, components: Mapping[str, Any]) -> Mapping[str, str]:
        reasons: dict[str, str] = {}
        for name, root in self.roots(components).items():
            reasons |= source.unavailable_in(root, name)
        if components.get("vae") is None:
            reasons |= dict.fromkeys(("vae.decode", "vae.encode"), "the pipeline has no VAE")
        return reasons

    def install(self, components: Mapping[str, Any], wiring: Wiring) -> None:
        for name, root in self.roots(components).items():
            _install_root(root, name, wiring)
        vae = components.get("vae")
        if vae is not None:
            config = vae.config
            install_vae(
                vae, wiring, space=config.spatial_compression_ratio, time=config.temporal_compression_ratio
            )
        place(components, wiring)

    def plan_call(self, pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
        return calls.plan_call(pipe, arguments)

    def modulation(
        self, root: Any, timesteps: tuple[float, ...] | torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        return time_signals(root, timesteps)

    def release(self, components: Mapping[str, Any]) -> None:
        for root in self.roots(components).values():
            forget(root)

    def uninstall(self, components: Mapping[str, Any]) -> None:
        """Cut every cycle that ``install`` made: modules refer to what the session put on them, and that to them."""
        for root in self.roots(components).values():
            for block, _, _ in blocks_of(root):
                close_block(block)
                close_attention(getattr(block, "attn", None))
                close_linears(block)
            close_root(root)
            root.__dict__.pop(SLOT, None)
        if components.get("vae") is not None:
            close_slot(components["vae"])


def _install_root(root: Any, name: str, wiring: Wiring) -> None:
    """From the innermost seam outwards; what nobody claims stays stock."""
    claimed, wrap = wiring.seams.claimed, wrapper(wiring, name)
    for block, path, index in blocks_of(root):
        if claimed("linear"):
            open_linears(block, wrap, path, index)
    attended = claimed(*source.SEAMS_OF_ATTENTION) and open_attention(root, wrap, always=is_15(root))
    if claimed(*source.SEAMS_OF_BLOCK):
        open_blocks(root, wrap)
    trims, forward = attended and _trims(root, wiring), None
    if trims or claimed(*source.SEAMS_OF_ROOT):
        kind = OpenRoot15 if is_15(root) else OpenRoot
        forward = kind(root, wrap, trims).as_forward()
    config = root.config
    grid = patches((config.patch_size_t, config.patch_size, config.patch_size))
    channels = config.out_channels or config.in_channels
    install_root(root, name, wiring, wrap, forward, grid=grid, channels=channels)


def _trims(root: Any, wiring: Wiring) -> bool:
    """Whether text is cut to its valid length, which leaves an attention without a mask.

    For every provider of attention, since many take no mask, and a mask costs the others their best kernel; but for one
    that says by ``stock_mask`` that it gives the stock's own bits for the stock's own mask. A handler that only looks
    on gets the stock mask. On 1.5 nobody does: the stock mask has a row for every pair of tokens.
    """
    if is_15(root):
        return True
    techniques = [wiring.techniques.get(name) for name in wiring.seams.claimants("attention")]
    return any(
        isinstance(technique, AttentionProvider) and not technique.stock_mask for technique in techniques
    )
