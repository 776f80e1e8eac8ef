"""Tiny Cosmos models of every generation, and a session in miniature: a copy, its wiring, and one run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from diffusers import (
    AutoencoderKLCosmos,
    AutoencoderKLWan,
    Cosmos2_5_PredictBasePipeline,
    Cosmos2_5_TransferPipeline,
    Cosmos2TextToImagePipeline,
    Cosmos2VideoToWorldPipeline,
    CosmosControlNetModel,
    CosmosTextToWorldPipeline,
    CosmosTransformer3DModel,
    CosmosVideoToWorldPipeline,
    EDMEulerScheduler,
    FlowMatchEulerDiscreteScheduler,
    UniPCMultistepScheduler,
)
from diffusers.models.controlnets import controlnet_cosmos
from diffusers.models.transformers import transformer_cosmos

from wf_core.api import Facts, Handler, RunView, Seams, Site, Wiring
from wf_core.testing import Run, copy_module, copy_pipeline
from wf_plugin_cosmos.family import CosmosFamily
from wf_plugin_cosmos.trial import TRANSFORMER, VAE, NothingToCheck

HEADS, HEAD_DIM, TEXT_DIM, IMAGE_DIM = 2, 12, 16, 6
WIDTH = HEADS * HEAD_DIM
PLAIN = {key: value for key, value in TRANSFORMER.items() if "cross" not in key and "encoder" not in key}
OF_KIND: dict[str, dict[str, Any]] = {
    "p1": {**PLAIN, "in_channels": 16, "extra_pos_embed_type": "learnable"},
    "p1-video": {**PLAIN, "extra_pos_embed_type": "learnable"},
    "p2-image": {**PLAIN, "in_channels": 16},
    "p2": PLAIN,
    "p2.5": TRANSFORMER,
    "transfer": {
        **TRANSFORMER,
        "num_layers": 3,
        "max_size": (16, 16, 16),
        "controlnet_block_every_n": 2,
        "img_context_dim_in": IMAGE_DIM,
        "img_context_num_tokens": 5,
        "img_context_dim_out": WIDTH,
    },
}


class Resizing:
    """What torchvision resizes masks with, where it is not installed: the nearest of the old pixels."""

    class InterpolationMode:
        NEAREST = "nearest"

    @staticmethod
    def resize(mask: torch.Tensor, size: list[int], interpolation: Any) -> torch.Tensor:
        return F.interpolate(mask, size=size, mode="nearest")


Resizing.functional = Resizing  # type: ignore[attr-defined]


@pytest.fixture
def torchvision(monkeypatch: pytest.MonkeyPatch) -> None:
    """torchvision's part in the models, by a stand-in where it is not installed."""
    for module in (transformer_cosmos, controlnet_cosmos):
        if not hasattr(module, "transforms"):
            monkeypatch.setattr(module, "transforms", Resizing, raising=False)


def randomise(model: Any, dtype: torch.dtype) -> Any:
    """Random weights, in ``dtype`` but for what ``from_pretrained`` keeps in fp32."""
    kept = model._keep_in_fp32_modules
    for name, parameter in model.named_parameters():
        parameter.data.normal_(0, 0.2)
        if not any(part in kept for part in name.split(".")):
            parameter.data = parameter.data.to(dtype)
    return model.eval().requires_grad_(False)


@functools.cache
def build_model(kind: str, dtype: torch.dtype = torch.float32, **config: Any) -> Any:
    """The same model for all tests, which change copies only."""
    torch.manual_seed(7)
    return randomise(CosmosTransformer3DModel(**{**OF_KIND[kind], **config}), dtype)


def build_call(kind: str, dtype: torch.dtype = torch.float32) -> dict[str, Any]:
    """Keyword arguments of one transformer call; grid (2, 2, 3), so 12 tokens."""
    torch.manual_seed(11)
    projected = kind in ("p2.5", "transfer")
    text = torch.randn(1, 8, 20 if projected else TEXT_DIM, dtype=dtype)
    call: dict[str, Any] = {
        "hidden_states": torch.randn(1, 16, 2, 4, 6, dtype=dtype),
        "timestep": torch.tensor([-0.4], dtype=dtype),
        "encoder_hidden_states": text,
        "return_dict": False,
    }
    if kind in ("p1", "p1-video", "p2"):
        call["fps"] = 16
    if kind not in ("p1", "p2-image"):
        call["condition_mask"] = torch.ones(1, 1, 2, 4, 6, dtype=dtype)
    if kind in ("p2", "p2.5", "transfer"):
        call["timestep"] = torch.tensor([0.0001, 0.7], dtype=dtype).view(1, 1, 2, 1, 1)
    if kind == "transfer":
        call["encoder_hidden_states"] = (text, torch.randn(1, 5, IMAGE_DIM, dtype=dtype))
        call["block_controlnet_hidden_states"] = [torch.randn(1, 12, WIDTH, dtype=dtype) for _ in range(2)]
    return call


@functools.cache
def build_vae(kind: str, dtype: torch.dtype = torch.float32) -> Any:
    """Predict1's VAE (8 pixels, 8 frames), or that of Wan 2.1 (8 pixels, 4 frames)."""
    torch.manual_seed(3)
    if not kind.startswith("p1"):
        vae = AutoencoderKLWan(**VAE).eval().requires_grad_(False)
        for parameter in vae.parameters():
            parameter.data = parameter.data.to(dtype)
        return vae
    widths = (4, 4, 4, 4)
    vae = AutoencoderKLCosmos(
        encoder_block_out_channels=widths,
        decode_block_out_channels=widths,
        num_layers=1,
        resolution=64,
        attention_resolutions=(32,),
    )
    return vae.eval().requires_grad_(False)


def unipc() -> Any:
    return UniPCMultistepScheduler(
        prediction_type="flow_prediction",
        use_flow_sigmas=True,
        use_karras_sigmas=True,
        sigma_max=200.0,
        sigma_min=0.01,
    )


def edm() -> Any:
    return EDMEulerScheduler(
        sigma_max=80, sigma_min=0.002, sigma_data=0.5, final_sigmas_type="sigma_min", sigma_schedule="karras"
    )


def flow() -> Any:
    return FlowMatchEulerDiscreteScheduler(use_karras_sigmas=True)


PIPELINES: dict[str, tuple[Any, Callable[[], Any]]] = {
    "p1": (CosmosTextToWorldPipeline, edm),
    "p1-video": (CosmosVideoToWorldPipeline, edm),
    "p2-image": (Cosmos2TextToImagePipeline, flow),
    "p2": (Cosmos2VideoToWorldPipeline, flow),
    "p2.5": (Cosmos2_5_PredictBasePipeline, unipc),
    "transfer": (Cosmos2_5_TransferPipeline, unipc),
}


@functools.cache
def build_control(dtype: torch.dtype) -> Any:
    torch.manual_seed(9)
    same = {k: v for k, v in OF_KIND["transfer"].items() if k not in LEFT_OUT}
    model = CosmosControlNetModel(**same, n_controlnet_blocks=2, model_channels=WIDTH, in_channels=19)
    return randomise(model, dtype)


LEFT_OUT = {
    "in_channels",
    "out_channels",
    "num_layers",
    "concat_padding_mask",
    "controlnet_block_every_n",
    "img_context_num_tokens",
}


def build_pipe(kind: str, dtype: torch.dtype = torch.float32, **parts: Any) -> Any:
    """A pipeline without text encoder: callers pass ``prompt_embeds``. The VAE stays in fp32, but for Transfer2.5,
    whose control network is given what the VAE makes.
    """
    pipeline, scheduler = PIPELINES[kind]
    given: dict[str, Any] = {
        "tokenizer": None,
        "text_encoder": None,
        "transformer": build_model(kind, dtype),
        "vae": build_vae(kind.partition("-")[0]),
        "scheduler": scheduler(),
        "safety_checker": NothingToCheck(),
    }
    if kind == "transfer":
        given |= {"controlnet": build_control(dtype), "vae": build_vae(kind, dtype)}
    pipe = pipeline(**{**given, **parts})
    pipe.set_progress_bar_config(disable=True)
    return pipe


def noise(*shape: int, seed: int = 2) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def build_arguments(kind: str, dtype: torch.dtype = torch.float32, **more: Any) -> dict[str, Any]:
    """A short call: 32x48 pixels, two latent frames (9 frames on Predict1, 5 on the others), 2 steps, guidance."""
    text = noise(1, 8, 20 if kind in ("p2.5", "transfer") else TEXT_DIM).to(dtype)
    call = {
        "prompt_embeds": text,
        "negative_prompt_embeds": text / 2,
        "height": 32,
        "width": 48,
        "num_inference_steps": 2,
        "guidance_scale": 3.0,
        "output_type": "latent",
    }
    if kind != "p2-image":
        call["num_frames"] = 9 if kind.startswith("p1") else 5
    if kind in ("p1-video", "p2"):
        call["image"] = noise(1, 3, 32, 48).sigmoid()
    if kind == "transfer":
        call |= {"controls": noise(1, 5, 3, 32, 48).sigmoid(), "num_frames_per_chunk": 5}
    return {**call, **more}


def bind(pipe: Any, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments with the pipeline's defaults, as the host binds them."""
    bound = inspect.signature(pipe.__call__).bind_partial(**arguments)
    bound.apply_defaults()
    return dict(bound.arguments)


def output(pipe: Any, arguments: Mapping[str, Any], seed: int = 0) -> torch.Tensor:
    result = pipe(**arguments, generator=torch.Generator().manual_seed(seed))
    frames: torch.Tensor = result.images if hasattr(result, "images") else result.frames
    return frames


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
        self.family = CosmosFamily()
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
    owned = CosmosFamily().owned(pipe)
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
        control=build_control,
        pipe=build_pipe,
        arguments=build_arguments,
        bind=bind,
        output=output,
        open=open_model,
        open_pipe=open_pipe,
        opened=Opened,
        copy=copy_module,
        width=WIDTH,
    )
