"""The adapter: the seams of a model whose blocks see image and text tokens as one sequence.

Handlers of ``stack`` and ``block`` get that sequence, so that what a cache keeps continues the text too. There are no
seams within a block but ``qkv`` and ``attention``: its attention and its feed-forward end in one projection.
"""

from __future__ import annotations

import copy
from functools import partial
from types import SimpleNamespace

import torch
from mosaic_video import PATCH, PIXELS, attend

from wf_core.api import CallPlan, ModelFamily, Schedule, specialise

INNER = ("stack", "block", "qkv", "attention")
NAMES = ("hidden_states", "timestep", "encoder_hidden_states")


class Denoiser:
    """The transformer of one session; ``signal`` is that of the call in progress."""

    def __init__(self, net, wiring):
        self.net, self.wiring, self.signal = net, wiring, None
        wrap = partial(wiring.wrap, root="transformer")
        self.layers = [self.open_layer(wrap, layer, index) for index, layer in enumerate(net.layers)]
        self.stack = wrap("stack", self.run_layers)
        compute = self.compute if wiring.seams.claimed(*INNER) else partial(stock, type(net).forward, net)
        self.chain = wrap("guidance", wrap("denoiser", compute))

    def open_layer(self, wrap, layer, index):
        site = {"path": f"layers.{index}.attention", "index": index, "role": "joint"}
        project = wrap("qkv", project_by, **site)
        attention = wrap("attention", attend, **site)
        parts = (layer, partial(project, layer.attention), partial(masked_by_nothing, attention))
        return wrap("block", partial(self.run_layer, *parts), path=f"layers.{index}", index=index)

    def run_layer(self, layer, project, attention, tokens):
        return layer.with_attention(project, attention, tokens, self.signal)

    def run_layers(self, tokens):
        for layer in self.layers:
            tokens = layer(tokens)
        return tokens

    def compute(self, call):
        tokens = self.net.tokens(call["hidden_states"], call["encoder_hidden_states"])
        self.signal = self.net.signal(call["timestep"])
        try:
            out = self.stack(tokens)
        finally:
            self.signal = None
        self.wiring.require(out, tuple(tokens.shape), "stack")
        return self.net.latents(out, call["hidden_states"])

    def __call__(self, *args, return_dict=True, **kwargs):
        call = dict(zip(NAMES, args, strict=False), **kwargs)
        latents, text = call["hidden_states"], call["encoder_hidden_states"]
        grid = (latents.shape[2], latents.shape[3] // PATCH, latents.shape[4] // PATCH)
        compute = partial(self.chain, call)
        sample = self.wiring.call("transformer", call["timestep"], text, grid, compute)
        self.wiring.require(sample, tuple(latents.shape), "guidance", "denoiser")
        return SimpleNamespace(sample=sample) if return_dict else (sample,)


def stock(forward, net, call):
    return forward(net, **call, return_dict=False)[0]


def project_by(attention, x):
    return attention.project(x)


def masked_by_nothing(attention, query, key, value):
    return attention(query, key, value, None)


def decode_by(decode, vae, latents):
    return decode(vae, latents, return_dict=False)[0]


def session_forward(stock_class):
    return {"forward": lambda self, *args, **kwargs: self._wf(*args, **kwargs)}


def session_decode(stock_class):
    def decode(self, latents, return_dict=True):
        video = self._wf(latents)
        return SimpleNamespace(sample=video) if return_dict else (video,)

    return {"decode": decode}


def closed(*args, **kwargs):
    raise RuntimeError("this model belongs to a session that is closed; open a new one")


class MosaicFamily(ModelFamily):
    def owned(self, base):
        return ("transformer", "vae")

    def roots(self, components):
        return {"transformer": components["transformer"]}

    def unavailable_seams(self, components):
        return {}

    def install(self, components, wiring):
        net, vae = components["transformer"], components.get("vae")
        object.__setattr__(net, "_wf", Denoiser(net, wiring))
        specialise(net, session_forward)
        if vae is not None and wiring.seams.claimed("vae.decode"):
            decode = partial(decode_by, type(vae).decode, vae)
            object.__setattr__(vae, "_wf", wiring.wrap("vae.decode", decode, root="vae"))
            specialise(vae, session_decode)

    def uninstall(self, components):
        for component in components.values():
            if (slot := vars(component).get("_wf")) is not None:
                object.__setattr__(component, "_wf", closed)
                if isinstance(slot, Denoiser):
                    vars(slot).clear()  # its parts refer back to it

    def plan_call(self, pipe, arguments):
        steps, unit = arguments["num_inference_steps"], PATCH * PIXELS
        scheduler = copy.deepcopy(pipe.scheduler)
        scheduler.set_timesteps(steps)
        branches = 2 if arguments["guidance_scale"] > 1 else 1
        names = ("height", "width", "num_frames", "num_inference_steps", "guidance_scale")
        facts = {f"run.{name}": arguments[name] for name in names}
        tokens = arguments["num_frames"] * (arguments["height"] // unit) * (arguments["width"] // unit)
        problems = [
            f"{name} {arguments[name]} is not a multiple of {unit}; the nearest is "
            f"{arguments[name] // unit * unit or unit}."
            for name in ("height", "width")
            if arguments[name] % unit
        ]
        schedule = Schedule(tuple(scheduler.timesteps.tolist()), ("transformer",) * steps)
        known = {**facts, "run.branches": branches, "run.tokens": tokens}
        return CallPlan(schedule, branches, known, tuple(problems))

    def modulation(self, root, timesteps):
        signal = root.signal(torch.as_tensor(timesteps, dtype=torch.float32)).float()
        return {"e": signal[:, 0], "e0": signal.flatten(1)}
