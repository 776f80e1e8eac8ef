"""Repeating one training step: eagerly, or on a GPU as the replay of one captured CUDA graph."""

import copy
from collections.abc import Callable

import torch
from torch import nn

from wf_plugin_model_tiny_wan.training.budget import Budget, cosine


class Optimiser:
    """AdamW whose learning rate is a tensor (a captured step can then follow a schedule), with clipping and EMA.

    Args:
        module: the module to train, fp32.
        learning_rate: the peak.
        ema: decay of the moving average of the weights per step, or None to keep none.
    """

    def __init__(self, module: nn.Module, learning_rate: float, ema: float | None = None) -> None:
        self.parameters = [p for p in module.parameters() if p.requires_grad]
        device = self.parameters[0].device
        self.peak, self.decay = learning_rate, ema
        # Low until the schedule sets it: the eager calls before a capture are steps too.
        self.rate = torch.tensor(0.02 * learning_rate, device=device)
        self.adamw = torch.optim.AdamW(
            self.parameters,
            lr=self.rate,
            betas=(0.9, 0.99),
            weight_decay=0.01,
            capturable=device.type == "cuda",
            fused=device.type == "cuda",
            foreach=False,
        )
        self.averaged = copy.deepcopy(module).requires_grad_(False) if ema else module
        self.average = list(self.averaged.parameters()) if ema else []

    def step(self, loss: torch.Tensor) -> None:
        """Back-propagate ``loss``, clip the gradient to norm 1, update the weights and their average."""
        self.adamw.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(self.parameters, 1.0, foreach=True)
        self.adamw.step()
        if self.decay:
            with torch.no_grad():
                torch._foreach_lerp_(self.average, self.parameters, 1 - self.decay)


def capture(step: Callable[[], torch.Tensor]) -> Callable[[], torch.Tensor]:
    """Return a function that replays ``step`` as a CUDA graph and returns its (static) result tensor.

    ``step`` must draw its data on the device and never wait for the host. Eight eager calls warm it up.
    """
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(8):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = step()

    def replay() -> torch.Tensor:
        graph.replay()
        return result

    return replay


def train(
    name: str,
    step: Callable[[], torch.Tensor],
    optimiser: Optimiser,
    budget: Budget,
    *,
    every: int = 200,
    on_report: Callable[[int], None] | None = None,
) -> int:
    """Run ``step`` (which calls ``optimiser.step`` and returns the detached loss) until the budget is spent.

    Args:
        every: steps between two printed reports, each with the loss averaged since the last.
        on_report: called with the step number after each report, for saving.

    Returns:
        The number of steps taken.
    """
    on_gpu = optimiser.rate.is_cuda
    run = capture(step) if on_gpu else step
    total, count = torch.zeros((), device=optimiser.rate.device), 0
    while (progress := budget.progress(count)) < 1:
        optimiser.rate.fill_(optimiser.peak * cosine(progress))
        total += run()
        count += 1
        if count % every == 0:
            print(
                f"{name}: step {count}, {progress:.0%} of the budget, loss {total.item() / every:.4f}",
                flush=True,
            )
            total.zero_()
            if on_report:
                on_report(count)
        elif on_gpu and count % 20 == 0:
            torch.cuda.synchronize()  # keep the host's clock honest: replays are queued much faster than they run
    print(f"{name}: {count} steps", flush=True)
    return count
