"""TF32, the precision of float32 products, and deterministic algorithms, in the whole process."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from wf_core.api import BadInput
from wf_plugin_execution_numerics.process import ProcessSetting


class Float32Setting(ProcessSetting):
    """A setting of float32 arithmetic. torch has two interfaces for it, which can be made to contradict each other."""

    def prepare(self, components: Mapping[str, Any]) -> None:
        """Raises ``BadInput`` where they do: torch cannot say then what is set, so it could not be put back."""
        try:
            torch.get_float32_matmul_precision()
        except RuntimeError as error:
            raise BadInput(
                "torch.backends.fp32_precision (or one below it) contradicts torch.set_float32_matmul_precision in "
                "this process, so that what is set now could not be put back: set only one of the two beforehand"
            ) from error


class Tf32(Float32Setting):
    """Allow TF32 in float32 matrix products and cuDNN convolutions, or forbid it in both."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self._enabled = enabled

    def process_settings(self) -> Mapping[str, Any]:
        return {"allow_tf32": self._enabled}

    def read(self) -> Mapping[str, Any]:
        """The ``fp32_precision`` of both: reading those never raises and never warns."""
        backends: Any = torch.backends  # made while torch is imported, which types do not show
        return {
            "matmul": backends.cuda.matmul.fp32_precision,
            "convolution": backends.cudnn.conv.fp32_precision,
        }

    def holds(self, seen: Mapping[str, Any]) -> bool:
        return all((value == "tf32") is self._enabled for value in seen.values())


class MatmulPrecision(Float32Setting):
    """``torch.set_float32_matmul_precision``."""

    def __init__(self, precision: str) -> None:
        super().__init__()
        self._precision = precision

    def process_settings(self) -> Mapping[str, Any]:
        return {"matmul_precision": self._precision}

    def read(self) -> Mapping[str, Any]:
        try:
            return {"matmul_precision": torch.get_float32_matmul_precision()}
        except RuntimeError:  # somebody has changed one interface and not the other since the session opened
            return {"matmul_precision": "contradictory"}

    def holds(self, seen: Mapping[str, Any]) -> bool:
        return bool(seen["matmul_precision"] == self._precision)


class Deterministic(ProcessSetting):
    """``torch.use_deterministic_algorithms``: an operation without a deterministic kernel raises, and does not warn."""

    def __init__(self, enabled: bool) -> None:
        super().__init__()
        self._enabled = enabled

    def process_settings(self) -> Mapping[str, Any]:
        return {"deterministic": self._enabled}

    def read(self) -> Mapping[str, Any]:
        return {
            "deterministic": torch.are_deterministic_algorithms_enabled(),
            "warn_only": torch.is_deterministic_algorithms_warn_only_enabled(),
        }

    def holds(self, seen: Mapping[str, Any]) -> bool:
        return seen == {"deterministic": self._enabled, "warn_only": False}
