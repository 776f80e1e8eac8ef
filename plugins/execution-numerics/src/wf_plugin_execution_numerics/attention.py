"""The kernels that ``F.scaled_dot_product_attention`` may choose from, in the whole process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from wf_plugin_execution_numerics.process import ProcessSetting

KERNELS = {
    "flash": "sdpa_flash",
    "cudnn": "sdpa_cudnn",
    "efficient": "sdpa_mem_efficient",
    "math": "sdpa_math",
}
"""Name of a policy that allows one kernel -> the guard's name for the kernel's flag."""


class AttentionPolicy(ProcessSetting):
    """``auto`` allows every kernel, and leaves torch its order; a name allows that one and no other.

    torch raises for a call that the one kernel cannot serve (a mask, a head size, a dtype): nothing falls back.
    """

    counter = "calls_under_policy"

    def __init__(self, policy: str) -> None:
        super().__init__()
        self._allowed = {flag: policy in ("auto", kernel) for kernel, flag in KERNELS.items()}

    def process_settings(self) -> Mapping[str, Any]:
        return self._allowed

    def read(self) -> Mapping[str, Any]:
        flags: Any = torch.backends.cuda  # its getters have no types
        return {
            "sdpa_flash": flags.flash_sdp_enabled(),
            "sdpa_cudnn": flags.cudnn_sdp_enabled(),
            "sdpa_mem_efficient": flags.mem_efficient_sdp_enabled(),
            "sdpa_math": flags.math_sdp_enabled(),
        }

    def holds(self, seen: Mapping[str, Any]) -> bool:
        return seen == self._allowed
