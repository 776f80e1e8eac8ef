"""What the tests share: two small Wan VAEs, a session's copy of one, and decoders stacked as the host stacks them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch
from diffusers import AutoencoderKLWan
from torch import nn

from wf_core.api import Site, VaeDecoder
from wf_plugin_vae_wan.features import build

SITE = Site("vae.decode", root="vae")


class Tally:
    """Counters as the host gives them, kept where a test can look."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def add(self, name: str, amount: int = 1) -> None:
        self.counts[name] += amount


def _vae(**settings: Any) -> AutoencoderKLWan:
    torch.manual_seed(0)
    common = {
        "z_dim": 16,
        "dim_mult": [1, 1, 1, 1],
        "num_res_blocks": 1,
        "temperal_downsample": [False, True, True],
    }
    return AutoencoderKLWan(**common, **settings).eval().requires_grad_(False)


@pytest.fixture
def v21() -> AutoencoderKLWan:
    """Factor 8, pixels straight from the last convolution, as the VAE of Wan 2.1."""
    return _vae(base_dim=3)


@pytest.fixture
def v22() -> AutoencoderKLWan:
    """Factor 16, residual blocks, 2x2 pixels per output position, as the VAE of Wan 2.2 TI2V."""
    wide = {"decoder_base_dim": 8, "in_channels": 12, "out_channels": 12, "scale_factor_spatial": 16}
    return _vae(base_dim=8, is_residual=True, patch_size=2, **wide)


@pytest.fixture(params=["v21", "v22"])
def vae(request: pytest.FixtureRequest) -> AutoencoderKLWan:
    return request.getfixturevalue(request.param)


@pytest.fixture
def latents() -> Callable[..., torch.Tensor]:
    """[B, 16, T, H, W] of unit normal numbers from a fixed seed."""

    def make(frames=3, height=4, width=4, batch=1, dtype=torch.float32):
        generator = torch.Generator().manual_seed(1)
        return torch.randn((batch, 16, frames, height, width), generator=generator).to(dtype)

    return make


def _share(module: nn.Module) -> Any:
    """Module objects of its own around the same parameters, as a session gets them."""
    copied = object.__new__(type(module))
    copied.__dict__.update(module.__dict__)
    for table in ("_parameters", "_buffers"):
        copied.__dict__[table] = dict(getattr(module, table))
    copied.__dict__["_modules"] = {name: part and _share(part) for name, part in module._modules.items()}
    return copied


@pytest.fixture
def session_copy() -> Callable[[nn.Module], Any]:
    return _share


@pytest.fixture
def stacked() -> Callable[..., Callable[[torch.Tensor], torch.Tensor]]:
    """``stacked(vae, ("feature", options), ...)``: decode with the given features, the first outermost.

    The decoders are at ``.parts`` of the result, in the same order.
    """

    def make(vae: AutoencoderKLWan, *wanted: tuple[str, dict[str, Any]]) -> Callable[..., torch.Tensor]:
        def stock(latents: torch.Tensor) -> torch.Tensor:
            return vae.decode(latents, return_dict=False)[0]

        parts: list[VaeDecoder] = []
        for name, options in wanted:
            part = build(name, options)
            part.counters = Tally()  # type: ignore[assignment]
            part.prepare({"vae": vae})
            part.begin(None)  # type: ignore[arg-type]
            parts.append(part)
        call: Callable[..., torch.Tensor] = stock
        for part in reversed(parts):
            call = partial(part.handlers()["vae.decode"], call, SITE)

        @torch.no_grad()
        def decode(latents: torch.Tensor) -> torch.Tensor:
            return call(latents)

        decode.parts = parts  # type: ignore[attr-defined]
        return decode

    return make


@pytest.fixture
def stock() -> Callable[[AutoencoderKLWan, torch.Tensor], torch.Tensor]:
    """The VAE's own decode."""

    @torch.no_grad()
    def decode(vae: AutoencoderKLWan, latents: torch.Tensor) -> torch.Tensor:
        return vae.decode(latents, return_dict=False)[0]

    return decode
