"""The fakes are those of the library's tests: the same signals and steps drive the calibrator."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "lib-teacache" / "tests"))
