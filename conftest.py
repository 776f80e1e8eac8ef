"""One setting for every test: no network, no progress bars, one torch thread.

Bit-for-bit comparisons need a fixed number of threads, because the order of a sum depends on it. The number is set by
environment variable before anything loads torch, so that tests which prove that torch is *not* loaded stay true, and
child processes inherit it. One thread each lets ``pytest -n`` use every core without oversubscription.
"""

from __future__ import annotations

import importlib
import os
from pathlib import Path

import pytest

for variable in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"):
    os.environ[variable] = "1"

os.environ.update(
    HF_HUB_OFFLINE="1",
    HF_HUB_DISABLE_TELEMETRY="1",
    HF_HUB_DISABLE_PROGRESS_BARS="1",
    DIFFUSERS_VERBOSITY="error",
    TRANSFORMERS_VERBOSITY="error",
    TOKENIZERS_PARALLELISM="false",
    TQDM_DISABLE="1",
)
# What a developer has exported must not change what the tests see.
for variable in [name for name in os.environ if name.startswith("WF_")]:
    del os.environ[variable]

# pytest names test modules after their folders (wf_core.tests.test_x) and would make an empty package "wf_core" of the
# folder that the distribution lies in. It takes the real one when that is loaded already; neither loads torch.
for folder in sorted(Path(__file__).parent.glob("wf_*/pyproject.toml")):
    importlib.import_module(folder.parent.name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests first, so that no worker is left with one of them when all else is done."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    items.sort(key=lambda item: item.path not in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    if item.get_closest_marker("gpu") and not _cuda_device():
        pytest.skip("no CUDA device")


def _cuda_device() -> bool:
    if not Path("/dev/nvidiactl").exists():
        return False
    import torch

    return torch.cuda.is_available()
