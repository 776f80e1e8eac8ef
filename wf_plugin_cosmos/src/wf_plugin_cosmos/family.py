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
from wf_plugin_cosmos import calls, source
from wf_plugin_cosmos.modulation import time_signals
from wf_plugin_cosmos.open_attention import close_attention, open_attention
from wf_plugin_cosmos.open_block import open_block
from wf_plugin_cosmos.open_root import OpenRoot
from wf_plugin_cosmos.stock import ROOT
from wf_plugin_cosmos.vae import install_vae, release_vae

OWNED = (ROOT, "vae")


class CosmosFamily(ModelFamily):
    """Predict1, Predict2, Predict2.5 and Transfer2.5: one transformer. The pipelines enter no cache context, so a call
    is known by its number, its text and its timestep.
    """

    def owned(self, base: Any) -> tuple[str, ...]:
        if isinstance(base, nn.Module):
            return (ROOT,)
        return tuple(name for name in OWNED if isinstance(getattr(base, name, None), nn.Module))

    def moved(self, base: Any) -> tuple[str, ...]:
        """The safety checker, which every stock pipeline puts on the device for its checks."""
        return ("safety_checker",) if hasattr(base, "safety_checker") else ()

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
        if components.get("vae") is not None:
            install_vae(components["vae"], wiring)
        place(components, wiring)

    def plan_call(self, pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
        return calls.plan_call(pipe, arguments)

    def modulation(
        self, root: Any, timesteps: tuple[float, ...] | torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        """``{"e": [N, D], "e0": [N, 3 D]}``: the model has three rows, see `modulation`."""
        return time_signals(root, timesteps)

    def release(self, components: Mapping[str, Any]) -> None:
        if components.get("vae") is not None:
            release_vae(components["vae"])

    def uninstall(self, components: Mapping[str, Any]) -> None:
        """Cut every cycle that ``install`` made: modules refer to what the session put on them, and that to them."""
        for root in self.roots(components).values():
            _uninstall_root(root)
        if components.get("vae") is not None:
            close_slot(components["vae"])


def _install_root(root: Any, name: str, wiring: Wiring) -> None:
    """From the innermost seam outwards; what nobody claims stays stock."""
    claimed, wrap, rows = wiring.seams.claimed, wrapper(wiring, name), rows_as_they_come(wiring.seams)
    for block, path, index in _blocks(root):
        if claimed("linear"):
            open_linears(block, wrap, path, index)
        if claimed(*source.SEAMS_OF_ATTENTION):
            open_attention(block.attn1, wrap, f"{path}.attn1", index, "self")
            open_attention(block.attn2, wrap, f"{path}.attn2", index, "cross")
        if claimed(*source.SEAMS_OF_BLOCK, "time_embedding"):
            open_block(block, wrap, path, index, rows, always=claimed("time_embedding"))
    forward = OpenRoot(root, wrap).forward if claimed(*source.SEAMS_OF_ROOT) else None
    grid, channels = patches(root.config.patch_size), root.config.out_channels
    install_root(root, name, wiring, wrap, forward, grid=grid, channels=channels)


def _uninstall_root(root: Any) -> None:
    for block, _, _ in _blocks(root):
        close_block(block)
        for name in ("attn1", "attn2"):
            close_attention(getattr(block, name, None))
        close_linears(block)
    close_root(root)


def _blocks(root: Any) -> Iterator[tuple[Any, str, int]]:
    for index, block in enumerate(root.transformer_blocks):
        yield block, f"transformer_blocks.{index}", index
