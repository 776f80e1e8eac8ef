"""Measures that need a library which may not be there: LPIPS and VMAF. Nothing is ever downloaded for them."""

from __future__ import annotations

import json
import subprocess
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs
import numpy as np

from wf_core.media import as_uint8

if TYPE_CHECKING:
    Clip = np.ndarray[Any, Any]

LPIPS_BACKBONE = "alexnet-owt-7be5be79.pth"
"""The weights that torchvision keeps in torch's hub folder once they have been downloaded."""
VMAF_SMALLEST = 32
"""Pixels: libvmaf crashes on frames of 16."""
VMAF_FILTER = "[0:v]format=yuv444p[a];[1:v]format=yuv444p[b];[a][b]libvmaf=log_fmt=json:log_path=vmaf.json"


@attrs.frozen
class Optional:
    """A measure of a pair of clips ``[F, H, W, 3]`` in [0, 1], or None with the reason why there is none.

    The measure itself gives None for clips that it cannot measure.
    """

    measure: Callable[[Clip, Clip], float | None] | None
    missing: str = ""


def optional_measures() -> dict[str, Optional]:
    """LPIPS and VMAF as far as this installation has them."""
    return {"lpips": _lpips(), "vmaf": _vmaf()}


def _lpips() -> Optional:
    """Mean over frames of LPIPS with AlexNet (Zhang et al. 2018); 0 for equal frames."""
    if find_spec("lpips") is None:
        return Optional(None, "the package lpips is not installed")
    import torch

    weights = Path(torch.hub.get_dir()) / "checkpoints" / LPIPS_BACKBONE
    if not weights.is_file():
        return Optional(None, f"the weights {LPIPS_BACKBONE} are not in torch's hub folder")
    import lpips

    network = lpips.LPIPS(net="alex", verbose=False)

    @torch.no_grad()
    def measure(plain: Clip, other: Clip) -> float:
        pairs = zip(plain, other, strict=True)
        return float(np.mean([float(network(_image(a), _image(b), normalize=True)) for a, b in pairs]))

    return Optional(measure)


def _image(frame: Clip) -> Any:
    """``[H, W, 3]`` -> a tensor ``[1, 3, H, W]`` float32."""
    import torch

    return torch.from_numpy(np.ascontiguousarray(frame)).float().permute(2, 0, 1)[None]


def _vmaf() -> Optional:
    """Netflix's VMAF, 0 to 100, the mean over frames, by the libvmaf filter of ffmpeg."""
    if find_spec("imageio_ffmpeg") is None:
        return Optional(None, "imageio-ffmpeg is not installed")
    import imageio_ffmpeg

    try:
        ffmpeg = imageio_ffmpeg.get_ffmpeg_exe()
        filters = _call(ffmpeg, "-filters")
    except (OSError, RuntimeError, subprocess.SubprocessError):
        return Optional(None, "no ffmpeg that runs was found")
    if " libvmaf " not in filters:
        return Optional(None, "this ffmpeg is built without libvmaf")

    def measure(plain: Clip, other: Clip) -> float | None:
        _, height, width, _ = plain.shape
        if min(height, width) < VMAF_SMALLEST:
            return None
        raw = ["-f", "rawvideo", "-pix_fmt", "rgb24", "-s", f"{width}x{height}", "-i"]
        with tempfile.TemporaryDirectory() as folder:
            as_uint8(plain).tofile(f"{folder}/plain.raw")
            as_uint8(other).tofile(f"{folder}/other.raw")
            inputs = [*raw, "other.raw", *raw, "plain.raw"]  # the distorted one comes first
            _call(ffmpeg, *inputs, "-lavfi", VMAF_FILTER, "-f", "null", "-", cwd=folder)
            found = json.loads(Path(folder, "vmaf.json").read_text(encoding="utf-8"))
        return float(found["pooled_metrics"]["vmaf"]["mean"])

    return Optional(measure)


def _call(ffmpeg: str, *arguments: str, cwd: str | None = None) -> str:
    """What ffmpeg prints on stdout; raises `subprocess.CalledProcessError` where it fails."""
    command = [ffmpeg, "-hide_banner", "-nostdin", "-loglevel", "error", *arguments]
    return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout
