"""What the masks of a forward take: HunyuanVideo-1.5's stock code has one for every pair of tokens, in every block."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from family_denoisers import FamilyDenoiser, Shape, build_family, call_family
from family_forwards import accepted, free, peak_since, running, said, start_peak
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from wf_core import Host

BLOCKS = 2


class NewTensors(TorchDispatchMode):
    """Looks at every tensor that an operator makes. A mask is one of bools, or ``[B, H, S, S]`` with S at least
    ``tokens``: what a kernel makes of a mask of bools.
    """

    def __init__(self, tokens: int) -> None:
        super().__init__()
        self.tokens = tokens
        self.largest = self.largest_mask = (0, "nothing")

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        out = func(*args, **(kwargs or {}))
        given = {_place(tensor) for tensor in _tensors((args, kwargs))}
        for tensor in _tensors(out):
            if _place(tensor) not in given:
                self._see(tensor, str(func))
        return out

    def _see(self, tensor: torch.Tensor, made_by: str) -> None:
        size = tensor.untyped_storage().nbytes()
        seen = size, f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)} of {made_by}"
        self.largest = max(self.largest, seen)
        pairs = tensor.ndim == 4 and min(tensor.shape[-2:]) >= self.tokens
        if tensor.dtype == torch.bool or pairs:
            self.largest_mask = max(self.largest_mask, seen)


def _tensors(values: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, torch.Tensor)]


def _place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def of_forward(model: Any, arguments: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    """The peak of one forward beside what was allocated before, and the largest tensors of another."""
    device = arguments["hidden_states"].device.type
    before = start_peak(device)
    model(**arguments)
    answer: dict[str, Any] = {"peak_mib": round(peak_since(before, device))}
    with NewTensors(tokens) as new:
        model(**arguments)
    for name, (size, what) in (("largest", new.largest), ("largest_mask", new.largest_mask)):
        answer |= {f"{name}_mib": round(size / 2**20, 3), f"{name}_is": what}
    return answer


def mask_memory(host: Host, denoiser: FamilyDenoiser, latents: Shape, device: str = "cuda") -> dict[str, Any]:
    """Stock and the exact stack with few blocks on a clip; stock is ``failed`` where that did not run."""
    few = denoiser.shortened(BLOCKS)
    model, arguments = build_family(few, device), call_family(few, latents, device)
    request, _ = accepted(host, model)
    tokens = few.tokens(latents)
    pairs = (tokens + few.text) ** 2
    answer = {"title": denoiser.title, "tokens": tokens, "text_tokens": few.text, "blocks": few.blocks}
    answer |= {"mask_of_pairs_mib": round(pairs / 2**20, 3), "request": request}
    with host.session(model, request) as session, running(session, arguments):
        answer["ours_exact"] = of_forward(session.model, arguments, tokens)
    free()
    answer["stock"] = _stock(model, arguments, tokens)  # last: it may not fit, or worse
    return answer


def _stock(model: Any, arguments: Mapping[str, Any], tokens: int) -> dict[str, Any]:
    try:
        return of_forward(model, arguments, tokens)
    except RuntimeError as failure:  # that memory ran out is one
        return {"failed": said(failure)}
