"""The clips of a comparison as files: one video for each clip, and a sheet with both clips of every prompt."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from wf_core.media import as_uint8, write_clip, write_contact_sheet

if TYPE_CHECKING:
    Clip = np.ndarray[Any, Any]

COLUMNS = 6
"""Frames of each clip on the sheet, evenly spaced from the first to the last."""


@attrs.frozen
class Pair:
    """The videos of one prompt."""

    prompt: str
    plain: Path
    accelerated: Path


@attrs.define(eq=False)
class Pictures:
    """Writes clips into a folder as they come, so that only a few frames of each are kept."""

    folder: Path
    fps: float
    pairs: list[Pair] = attrs.field(factory=list)
    _rows: list[Clip] = attrs.field(factory=list)

    def keep(self, prompt: str, plain: Clip, accelerated: Clip) -> None:
        """Both clips ``[F, H, W, 3]`` in [0, 1] of one prompt."""
        number = len(self.pairs)
        pair = Pair(
            prompt, self.folder / f"plain-{number:02}.mp4", self.folder / f"accelerated-{number:02}.mp4"
        )
        for clip, path in ((as_uint8(plain), pair.plain), (as_uint8(accelerated), pair.accelerated)):
            write_clip(clip, path, self.fps)
            self._rows.append(clip[np.linspace(0, len(clip) - 1, COLUMNS).round().astype(int)])
        self.pairs.append(pair)

    def write_sheet(self, path: Path) -> None:
        """One row of frames for each clip: the plain one, and under it the accelerated one."""
        write_contact_sheet(np.concatenate(self._rows), path, columns=COLUMNS)
