"""The adapter: which components a session owns, and how the claimed seams are put into its copies."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn

from wf_core.api import CallPlan, ModelFamily, Wiring
from wf_lib_family.closed import close_block, close_slot
from wf_lib_family.linear import close_linears, open_linears
from wf_lib_family.placement import place
from wf_lib_family.root import close_root, install_root, patches
from wf_lib_family.rows import rows_as_they_come
from wf_lib_family.sites import wrapper
from wf_plugin_wan import calls, source
from wf_plugin_wan.modulation import time_signals
from wf_plugin_wan.open_attention import close_attention, open_attention
from wf_plugin_wan.open_block import open_block
from wf_plugin_wan.open_root import OpenRoot, OpenVaceRoot
from wf_plugin_wan.stock import EXPERTS
from wf_plugin_wan.vae import install_vae, release_vae

OWNED = (*EXPERTS, "vae")


class WanFamily(ModelFamily):
    """Wan 2.1 and 2.2. An expert is called as its component: ``transformer``, ``transformer_2``."""

    def owned(self, base: Any) -> tuple[str, ...]:
        if isinstance(base, nn.Module):
            return (EXPERTS[0],)
        return tuple(name for name in OWNED if isinstance(getattr(base, name, None), nn.Module))

    def roots(self, components: Mapping[str, Any]) -> Mapping[str, nn.Module]:
        return {name: components[name] for name in EXPERTS if components.get(name) is not None}

    def unavailable_seams(self, components: Mapping[str, Any]) -> Mapping[str, str]:
        reasons: dict[str, str] = {}
        for name, root in self.roots(components).items():
            for seam, reason in source.unavailable_in(root, name).items():
                reasons.setdefault(seam, reason)
        if components.get("vae") is None:
            reasons |= dict.fromkeys(("vae.decode", "vae.encode"), "the pipeline has no VAE")
        return reasons

    def install(self, components: Mapping[str, Any], wiring: Wiring) -> None:
        for name, root in self.roots(components).items():
            _install_expert(root, name, wiring)
        if components.get("vae") is not None:
            install_vae(components["vae"], wiring)
        place(components, wiring)

    def plan_call(self, pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
        return calls.plan_call(pipe, arguments)

    def modulation(
        self, root: Any, timesteps: tuple[float, ...] | torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        return time_signals(root, timesteps)

    def release(self, components: Mapping[str, Any]) -> None:
        if components.get("vae") is not None:
            release_vae(components["vae"])

    def uninstall(self, components: Mapping[str, Any]) -> None:
        """Cut every cycle that ``install`` made: modules refer to what the session put on them, and that to them."""
        for root in self.roots(components).values():
            _uninstall_expert(root)
        if components.get("vae") is not None:
            close_slot(components["vae"])


def _install_expert(root: Any, expert: str, wiring: Wiring) -> None:
    """From the innermost seam outwards; what nobody claims stays stock."""
    claimed, wrap, rows = wiring.seams.claimed, wrapper(wiring, expert), rows_as_they_come(wiring.seams)
    for block, path, index in _blocks(root):
        if claimed("linear"):
            open_linears(block, wrap, path, index)
        if claimed(*source.SEAMS_OF_ATTENTION):
            open_attention(block.attn1, wrap, f"{path}.attn1", index, "self")
            open_attention(block.attn2, wrap, f"{path}.attn2", index, "cross")
        if claimed(*source.SEAMS_OF_BLOCK, "time_embedding"):
            open_block(block, wrap, path, index, rows, always=claimed("time_embedding"))
    forward = None
    if claimed(*source.SEAMS_OF_ROOT):
        kind = OpenVaceRoot if hasattr(root, "vace_blocks") else OpenRoot
        forward = kind(root, wrap).as_forward()
    grid, channels = patches(root.config.patch_size), root.config.out_channels
    install_root(root, expert, wiring, wrap, forward, grid=grid, channels=channels)


def _uninstall_expert(root: Any) -> None:
    for block, _, _ in _blocks(root):
        close_block(block)
        for name in ("attn1", "attn2"):
            close_attention(getattr(block, name, None))
        close_linears(block)
    close_root(root)


def _blocks(root: Any) -> Iterator[tuple[Any, str, int]]:
    for name in ("blocks", "vace_blocks"):
        for index, block in enumerate(getattr(root, name, ())):
            yield block, f"{name}.{index}", index
