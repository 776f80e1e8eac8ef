"""The adapter of the toy family: every seam, in the order of the stock forward."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import torch
from torch import nn

from wf_core.api import CallPlan, ModelFamily, Schedule, Wiring, specialise
from wf_core.testing.toy.model import SPACE, TIME, Output, add_gated, attend, modulate

SLOT = "_wf"
NAMES = ("hidden_states", "timestep", "encoder_hidden_states")
ROLES = ("self", "cross", "ffn")


class _Calls:
    """One root in one session: the forward in seam calls. ``_now`` holds the time embedding and text of the call."""

    def __init__(self, root: Any, wiring: Wiring) -> None:
        self._root = root
        self._wiring = wiring
        self._now: tuple[Any, Any] = (None, None)
        wrap = partial(wiring.wrap, root="transformer")
        self._stack = wrap("stack", self._stock_stack)
        self._blocks = [
            wrap(
                "block",
                partial(self._block, block, self._sites(index, block)),
                path=f"blocks.{index}",
                index=index,
            )
            for index, block in enumerate(root.blocks)
        ]
        denoiser = wrap("denoiser", self._denoise)
        self._chain = wrap("guidance", denoiser)

    def __call__(self, *args: Any, return_dict: bool = True, **kwargs: Any) -> Any:
        named = dict(zip(NAMES, args, strict=False), **kwargs)
        latents = named["hidden_states"]
        grid = (latents.shape[2], latents.shape[3] // 2, latents.shape[4] // 2)
        text = named["encoder_hidden_states"]
        sample = self._wiring.call(
            "transformer", named["timestep"], text, grid, partial(self._checked, named)
        )
        return Output(sample) if return_dict else (sample,)

    def _checked(self, named: Mapping[str, Any]) -> torch.Tensor:
        sample: torch.Tensor = self._chain(named)
        self._wiring.require(sample, tuple(named["hidden_states"].shape), "guidance", "denoiser")
        return sample

    def _denoise(self, named: Mapping[str, Any]) -> torch.Tensor:
        tokens, temb, text = self._root.embed(*(named[name] for name in NAMES))
        self._now = (temb, text)
        try:
            out = self._stack(tokens)
        finally:
            self._now = (None, None)
        self._wiring.require(out, tuple(tokens.shape), "stack")
        result: torch.Tensor = self._root.head(out, named["hidden_states"])
        return result

    def _stock_stack(self, x: torch.Tensor) -> torch.Tensor:
        for block in self._blocks:
            x = block(x)
        return x

    def _sites(self, index: int, block: Any) -> Mapping[str, Callable[..., Any]]:
        """The inner seams of one block, by seam and role."""
        path = f"blocks.{index}"
        found: dict[str, Callable[..., Any]] = {}
        for role, module in zip(("self", "cross"), (block.attn1, block.attn2), strict=True):
            name = "attn1" if role == "self" else "attn2"
            site = {"root": "transformer", "path": f"{path}.{name}", "index": index, "role": role}
            found[f"attention.{role}"] = self._wiring.wrap("attention", attend, **site)
            stock = partial(self._attention, module, role, found[f"attention.{role}"])
            found[f"branch.{role}"] = self._wiring.wrap("branch", stock, **site)
        site = {"root": "transformer", "path": f"{path}.ffn", "index": index, "role": "ffn"}
        found["branch.ffn"] = self._wiring.wrap("branch", block.ffn, **site)
        for role in ROLES:
            site = {"root": "transformer", "path": path, "index": index, "role": role}
            found[f"norm.{role}"] = self._wiring.wrap("norm_modulate", modulate, **site)
            found[f"residual.{role}"] = self._wiring.wrap("gated_residual", add_gated, **site)
        return found

    def _attention(
        self, module: Any, role: str, attention: Callable[..., Any], x: torch.Tensor
    ) -> torch.Tensor:
        context = x if role == "self" else self._now[1]
        out: torch.Tensor = module.to_out(attention(*module.project(x, context), None).flatten(2))
        return out

    def _block(self, block: Any, sites: Mapping[str, Callable[..., Any]], x: torch.Tensor) -> torch.Tensor:
        parts = block.parts(self._now[0])
        for role, norm, at in zip(ROLES, (block.norm1, block.norm2, block.norm3), (0, 3, 6), strict=True):
            scale, shift, gate = parts[at : at + 3]
            normed = sites[f"norm.{role}"](norm, x, scale, shift)
            x = sites[f"residual.{role}"](x, sites[f"branch.{role}"](normed), gate)
        return x


def _root(stock: Any) -> Mapping[str, Any]:
    @functools.wraps(stock.forward)
    def forward(self: Any, *args: Any, **kwargs: Any) -> Any:
        return self._wf(*args, **kwargs)

    return {"forward": forward}


def _vae(stock: Any) -> Mapping[str, Any]:
    def decode(self: Any, latents: torch.Tensor, return_dict: bool = True) -> Any:
        video = self._wf(latents)
        return Output(video) if return_dict else (video,)

    return {"decode": decode}


class ToyFamily(ModelFamily):
    """Adapter of `ToyPipeline` and of a bare `ToyTransformer`."""

    def owned(self, base: Any) -> tuple[str, ...]:
        return ("transformer", "vae")

    def roots(self, components: Mapping[str, Any]) -> Mapping[str, nn.Module]:
        return {"transformer": components["transformer"]}

    def install(self, components: Mapping[str, Any], wiring: Wiring) -> None:
        root = components["transformer"]
        object.__setattr__(root, SLOT, _Calls(root, wiring))
        specialise(root, _root)
        vae = components.get("vae")
        if vae is not None and wiring.seams.claimed("vae.decode"):
            stock = partial(_decode, type(vae).decode, vae)
            object.__setattr__(
                vae, SLOT, _checked_decode(wiring, wiring.wrap("vae.decode", stock, root="vae"))
            )
            specialise(vae, _vae)

    def unavailable_seams(self, components: Mapping[str, Any]) -> Mapping[str, str]:
        return {}

    def plan_call(self, pipe: Any, arguments: Mapping[str, Any]) -> CallPlan:
        steps = arguments["num_inference_steps"]
        timesteps = tuple(float(t) for t in torch.linspace(1000.0, 1000.0 / steps, steps))
        names = ("height", "width", "num_frames", "num_inference_steps", "guidance_scale")
        facts = {f"run.{name}": arguments[name] for name in names}
        branches = 2 if arguments["guidance_scale"] > 1 else 1
        step = 2 * SPACE
        problems = [
            f"{name} {arguments[name]} is not a multiple of {step}; nearest: {arguments[name] // step * step or step}."
            for name in ("height", "width")
            if arguments[name] % step
        ]
        if (arguments["num_frames"] - 1) % TIME:
            problems.append(f"num_frames {arguments['num_frames']} is not a multiple of {TIME} plus 1.")
        schedule = Schedule(timesteps, ("transformer",) * steps)
        return CallPlan(schedule, branches, {**facts, "run.branches": branches}, tuple(problems))

    def modulation(
        self, root: nn.Module, timesteps: tuple[float, ...] | torch.Tensor
    ) -> Mapping[str, torch.Tensor]:
        t = torch.as_tensor(timesteps, dtype=torch.float32)[:, None] / 1000
        model: Any = root
        temb = model.time(torch.cat([t.sin(), t.cos()], dim=-1)).float()
        return {"e": temb, "e0": model.blocks[0].modulation(temb)[:, : 6 * temb.shape[1]].float()}

    def uninstall(self, components: Mapping[str, Any]) -> None:
        for name in ("transformer", "vae"):
            component = components.get(name)
            if component is not None and SLOT in vars(component):
                object.__setattr__(component, SLOT, _closed)


def _closed(*_: Any, **__: Any) -> Any:
    raise RuntimeError("this model belongs to a session that is closed; open a new one")


def _decode(method: Any, vae: Any, latents: torch.Tensor) -> torch.Tensor:
    video: torch.Tensor = method(vae, latents, return_dict=False)[0]
    return video


def _checked_decode(wiring: Wiring, decode: Callable[..., Any]) -> Callable[[torch.Tensor], torch.Tensor]:
    def checked(latents: torch.Tensor) -> torch.Tensor:
        batch, _, frames, height, width = latents.shape
        video: torch.Tensor = decode(latents)
        wiring.require(
            video, (batch, 3, TIME * (frames - 1) + 1, SPACE * height, SPACE * width), "vae.decode"
        )
        return video

    return checked
