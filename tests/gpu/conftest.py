"""Tests that need a CUDA device. Where there is none they are skipped, and say so."""

from __future__ import annotations

import pytest
import torch


def pytest_collection_modifyitems(items):
    for item in items:
        if "tests/gpu" in str(item.path):
            item.add_marker(pytest.mark.gpu)
            if not torch.cuda.is_available():
                item.add_marker(pytest.mark.skip(reason="needs a CUDA device; torch sees none"))
