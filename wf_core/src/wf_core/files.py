"""Reading files that somebody else wrote: never more than a bound, never waiting for a pipe that nobody fills."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

MANIFEST_BYTES = 1 << 20
JSON_BYTES = 1 << 23
"""The largest manifest, and the largest JSON file (an index of weights has about 100 bytes for each tensor)."""


def open_file(path: Path, *, pipes: bool = False) -> BinaryIO:
    """A regular file, open for reading. With ``pipes`` also a pipe (``<(command)``), empty where nobody writes to it.

    Raises `OSError` for everything else: opening a pipe would wait, and a device may never end.
    """
    descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0))
    try:
        mode = os.fstat(descriptor).st_mode
        if stat.S_ISDIR(mode):
            raise OSError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not (stat.S_ISREG(mode) or (pipes and stat.S_ISFIFO(mode))):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        os.set_blocking(descriptor, True)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_text(path: Path, most: int, *, pipes: bool = False, encoding: str = "utf-8") -> str:
    """The text of a file of at most ``most`` bytes. Raises `OSError`, or `ValueError` for what is no text."""
    with open_file(path, pipes=pipes) as file:
        data = file.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it has more than {most >> 20} MiB", str(path))
    return data.decode(encoding).replace("\r\n", "\n")
