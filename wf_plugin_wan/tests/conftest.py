"""Tiny Wan models that exercise every path, and a session in miniature: a copy, its wiring, and one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from diffusers import (
    AutoencoderKLWan,
    UniPCMultistepScheduler,
    WanTransformer3DModel,
    WanVACETransformer3DModel,
)

from wf_core.api import Facts, Handler, RunView, Seams, Site, Wiring
from wf_core.testing import Run, copy_module, copy_pipeline
from wf_plugin_wan.family import WanFamily

HEADS, HEAD_DIM, TEXT_DIM = 2, 12, 32
WIDTH = HEADS * HEAD_DIM
COMMON = {
    "num_attention_heads": HEADS,
    "attention_head_dim": HEAD_DIM,
    "text_dim": TEXT_DIM,
    "freq_dim": 256,
    "ffn_dim": 32,
    "rope_max_seq_len": 32,
}
KINDS = ("t2v", "i2v", "ti2v", "vace")
DTYPES = (torch.float32, torch.bfloat16)


def build_model(kind: str, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """A transformer with random weights, in ``dtype`` but for what ``from_pretrained`` keeps in fp32."""
    torch.manual_seed(7)
    common = {**COMMON, "num_layers": 2, **config}
    if kind == "vace":
        model: Any = WanVACETransformer3DModel(
            **{**common, "num_layers": 3}, vace_layers=[0, 2], vace_in_channels=96
        )
    elif kind == "i2v":
        model = WanTransformer3DModel(**common, in_channels=36, image_dim=4, added_kv_proj_dim=WIDTH)
    elif kind == "ti2v":
        model = WanTransformer3DModel(**common, in_channels=48, out_channels=48)
    else:
        model = WanTransformer3DModel(**common)
    kept = model._keep_in_fp32_modules
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.2)
        if not any(part in kept for part in name.split(".")):
            parameter.data = parameter.data.to(dtype)
    return model.eval().requires_grad_(False)


def build_call(kind: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Keyword arguments of one transformer call; grid (2, 2, 3), so 12 tokens."""
    torch.manual_seed(11)
    channels = {"i2v": 36, "ti2v": 48}.get(kind, 16)
    call: dict[str, Any] = {
        "hidden_states": torch.randn(1, channels, 2, 4, 6, dtype=dtype),
        "timestep": torch.tensor([500]),
        "encoder_hidden_states": torch.randn(1, 512 if kind == "i2v" else 20, TEXT_DIM, dtype=dtype),
        "return_dict": False,
    }
    if kind == "i2v":
        call["encoder_hidden_states_image"] = torch.randn(1, 257, 4, dtype=dtype)
    if kind == "ti2v":
        call["timestep"] = torch.cat([torch.zeros(6), torch.full((6,), 500.0)]).unsqueeze(0)
    if kind == "vace":
        call["control_hidden_states"] = torch.randn(1, 96, 1, 4, 6, dtype=dtype)  # shorter: it is padded
        call["control_hidden_states_scale"] = torch.tensor([0.7, 1.3], dtype=dtype)
    return call


def build_vae(residual: bool = False) -> Any:
    """A tiny VAE: 2.1 (8 pixels, z 16), or 2.2 with ``residual`` (16 pixels, z 48)."""
    torch.manual_seed(3)
    sizes: dict[str, Any] = {"base_dim": 3, "dim_mult": [1, 1, 1, 1], "num_res_blocks": 1}
    if residual:
        sizes |= {"z_dim": 48, "in_channels": 12, "out_channels": 12, "patch_size": 2, "is_residual": True}
        sizes |= {"scale_factor_spatial": 16, "latents_mean": [0.0] * 48, "latents_std": [1.0] * 48}
    return AutoencoderKLWan(**sizes).eval().requires_grad_(False)


def build_pipe(kind: type, transformer: Any = None, vae: Any = None, **parts: Any) -> Any:
    """A pipeline without text encoder: callers pass ``prompt_embeds``."""
    pipe = kind(
        tokenizer=None,
        text_encoder=None,
        transformer=transformer,
        vae=vae,
        scheduler=UniPCMultistepScheduler(
            prediction_type="flow_prediction", use_flow_sigmas=True, flow_shift=3.0
        ),
        **parts,
    )
    pipe.set_progress_bar_config(disable=True)
    return pipe


class Seen:
    """Pass-through handlers that note every call: the site and the shapes of the tensors handed over."""

    def __init__(self, seams: Seams, names: tuple[str, ...], roles: tuple[str, ...] = ()) -> None:
        self.calls: list[tuple[Site, tuple[Any, ...]]] = []
        for name in names:
            seams.claim(name, f"watch-{name}", self._handler, roles)

    def _handler(self, inner: Callable[..., Any], site: Site, *args: Any) -> Any:
        self.calls.append((site, tuple(tuple(a.shape) if isinstance(a, torch.Tensor) else a for a in args)))
        return inner(*args)

    def of(self, seam: str) -> list[tuple[Site, tuple[Any, ...]]]:
        return [call for call in self.calls if call[0].seam == seam]


def new_run(timesteps: tuple[float, ...] = (), branches: int = 1) -> Run:
    view = RunView(
        num_inference_steps=len(timesteps),
        timesteps=timesteps,
        experts=(),
        branches=branches,
        facts=Facts(),
        modulation=lambda expert, steps: {},
        now=lambda: None,
    )
    return Run(view)


class Opened:
    """Copies of some components with the family installed; ``seen`` holds what the claimed seams were given."""

    def __init__(
        self,
        components: Mapping[str, Any],
        seams: tuple[str, ...] = (),
        roles: tuple[str, ...] = (),
        claims: Mapping[str, Handler] | None = None,
        owner: str = "",
    ) -> None:
        self.components = dict(components)
        self.wiring = Wiring(Seams())
        for seam, handler in (claims or {}).items():
            self.wiring.seams.claim(seam, owner or f"claim-{seam}", handler)
        self.seen = Seen(self.wiring.seams, seams, roles)
        self.family = WanFamily()
        self.family.install(self.components, self.wiring)

    @contextmanager
    def run(self, timesteps: tuple[float, ...] = (), branches: int = 1) -> Iterator[Run]:
        self.wiring.run = new_run(timesteps, branches)
        try:
            yield self.wiring.run
        finally:
            self.wiring.run = None


def open_model(model: Any, *seams: str, **more: Any) -> Opened:
    return Opened({"transformer": copy_module(model)}, seams, **more)


def open_pipe(pipe: Any, *seams: str, **more: Any) -> tuple[Any, Opened]:
    """A copy of the pipeline with the family installed on the components that a session owns."""
    owned = WanFamily().owned(pipe)
    copied = copy_pipeline(pipe, owned)
    return copied, Opened({name: getattr(copied, name) for name in owned}, seams, **more)


@pytest.fixture(scope="session")
def tiny() -> SimpleNamespace:
    """The builders above, by short names: tests are imported by path and cannot import this file."""
    torch.set_num_threads(1)
    return SimpleNamespace(
        model=build_model,
        call=build_call,
        vae=build_vae,
        pipe=build_pipe,
        open=open_model,
        open_pipe=open_pipe,
        opened=Opened,
        copy=copy_module,
        width=WIDTH,
    )
