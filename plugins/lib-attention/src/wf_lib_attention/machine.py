"""The device of a call, as far as the rules of kernels depend on it."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Machine:
    """What the rules of one call's device depend on: compute capability and cuDNN version (0 where there is none)."""

    capability: tuple[int, int] = (0, 0)
    cudnn: int = 0

    @classmethod
    def of(cls, device: torch.device) -> Machine:
        if device.type != "cuda":
            return cls()
        cudnn = torch.backends.cudnn.version()  # type: ignore[no-untyped-call]
        return cls(torch.cuda.get_device_capability(device), cudnn or 0)

    @property
    def is_cuda(self) -> bool:
        """Whether this is a CUDA device at all."""
        return self.capability > (0, 0)

    @property
    def version(self) -> str:
        """The compute capability as people write it: "9.0"."""
        return ".".join(str(number) for number in self.capability)
