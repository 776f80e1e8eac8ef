"""Write what a run produced: the clip and its contact sheet. Needs the extra ``media`` (imageio, pillow)."""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from wf_core.errors import BadInput

if TYPE_CHECKING:
    import numpy as np

CLIP_SUFFIXES = (".mp4", ".gif")


def check_clip_path(path: Path) -> Path:
    """The path, if a clip can be written there. Raises ``BadInput``; leaves nothing behind."""
    if path.suffix.lower() not in CLIP_SUFFIXES:
        raise BadInput(f"cannot write a clip to {path}: the name must end in {' or '.join(CLIP_SUFFIXES)}")
    return check_output_path(path)


def check_output_path(path: Path) -> Path:
    """The path, if a file can be created there: seen by creating one and removing it. Raises ``BadInput``."""
    try:
        mode = _mode(path)
        if mode is None:
            _try_to_create(Path(os.path.realpath(path)) if path.is_symlink() else path)
        elif stat.S_ISDIR(mode):
            raise BadInput(f"cannot write {path}: it is a directory")
        elif stat.S_ISREG(mode):
            path.open("r+b").close()
        else:
            raise BadInput(f"cannot write {path}: it is no regular file")
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from None
    except ValueError as error:  # a NUL in the name
        raise BadInput(f"cannot write {str(path)!r}: {error}") from None
    return path


def _mode(path: Path) -> int | None:
    """What is there, None where nothing is, or a link to nothing."""
    try:
        return path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None


def _try_to_create(path: Path) -> None:
    """A temporary file in the nearest folder that is there, with a name as long as the longest that is to come."""
    parent, longest = path.absolute().parent, len(os.fsencode(path.name))
    while not parent.exists() and parent != parent.parent:
        longest = max(longest, len(os.fsencode(parent.name)))
        parent = parent.parent
    if not parent.is_dir():
        raise BadInput(f"cannot write {path}: {parent} is not a directory")
    trial = parent / f".wf-{os.urandom(8).hex()}".ljust(longest, "x")
    with trial.open("xb"):
        trial.unlink()


def require_writers() -> None:
    """Raise ``BadInput`` where the libraries that write clips are missing, before anything is computed."""
    from importlib.util import find_spec

    missing = [name for name in ("imageio", "imageio_ffmpeg", "PIL") if find_spec(name) is None]
    if missing:
        raise BadInput(f"cannot write a clip without {', '.join(missing)}: pip install 'wf-core[media]'")


def as_uint8(video: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """``[..., H, W, 3]`` float in [0, 1] -> uint8, rounded."""
    rounded: np.ndarray[Any, Any] = (video * 255).round().clip(0, 255).astype("uint8")
    return rounded


def write_clip(frames: np.ndarray[Any, Any], path: Path, fps: float) -> None:
    """``frames`` ``[F, H, W, 3]`` uint8 -> an H.264 MP4 or a GIF, by the path's suffix."""
    import imageio.v3 as iio

    _make_parent(path)
    if path.suffix.lower() == ".gif":
        iio.imwrite(path, frames, duration=1000.0 / fps, loop=0)
    else:
        iio.imwrite(path, frames, fps=fps, codec="libx264", macro_block_size=2, output_params=["-crf", "16"])


def write_contact_sheet(frames: np.ndarray[Any, Any], path: Path, columns: int = 6) -> None:
    """``frames`` ``[F, H, W, 3]`` uint8 -> one PNG with every frame, in reading order."""
    import numpy as np
    from PIL import Image

    count, height, width, channels = frames.shape
    rows = -(-count // columns)
    sheet = np.full((rows * (height + 2), columns * (width + 2), channels), 32, dtype=np.uint8)
    for index, frame in enumerate(frames):
        top, left = index // columns * (height + 2) + 1, index % columns * (width + 2) + 1
        sheet[top : top + height, left : left + width] = frame
    _make_parent(path)
    Image.fromarray(sheet).save(path)


def write_text(text: str, path: Path) -> None:
    _make_parent(path)
    path.write_text(text, encoding="utf-8", errors="backslashreplace")


def _make_parent(path: Path) -> None:
    try:
        path.absolute().parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write {path}: {error.strerror or error}") from error
