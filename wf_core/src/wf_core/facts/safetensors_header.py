"""Names, dtypes and sizes of the tensors in a safetensors file, from its header alone."""

from __future__ import annotations

import json
import os
from itertools import pairwise
from pathlib import Path
from typing import Any

from wf_core.errors import BadInput
from wf_core.files import open_file

# The format: 8 bytes with the length N of the header (little endian), N bytes of JSON, then the data.
_LENGTH_BYTES = 8
_LONGEST_HEADER = 100_000_000
_END = 1 << 63

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def read_header(path: Path) -> dict[str, tuple[str, int]]:
    """Tensor name -> (dtype, bytes). Raises `BadInput` naming the file when it is missing, cut or corrupt."""
    header, data_bytes = _load(path)
    return _tensors(path, header, data_bytes)


def read_shapes(path: Path) -> dict[str, tuple[int, ...]]:
    """Tensor name -> shape, with the same checks as `read_header`."""
    header, data_bytes = _load(path)
    names = _tensors(path, header, data_bytes)
    try:
        return {name: tuple(_length(length) for length in header[name]["shape"]) for name in names}
    except (KeyError, TypeError, ValueError):
        raise _corrupt(path, "its header does not give shapes") from None


def _load(path: Path) -> tuple[Any, int]:
    """The header as JSON, and how many bytes of data follow it."""
    try:
        with open_file(path) as file:
            size = os.fstat(file.fileno()).st_size
            length = int.from_bytes(file.read(_LENGTH_BYTES), "little")
            if not 0 < length <= min(size - _LENGTH_BYTES, _LONGEST_HEADER):
                raise _corrupt(path, "its header is longer than the file")
            header = json.loads(file.read(length))
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, RecursionError):
        raise _corrupt(path, "its header is not JSON") from None
    return header, size - _LENGTH_BYTES - length


def _tensors(path: Path, header: Any, data_bytes: int) -> dict[str, tuple[str, int]]:
    try:
        rows = {name: row for name, row in header.items() if name != "__metadata__"}
        spans = {name: _span(*row["data_offsets"]) for name, row in rows.items()}
        tensors = {name: (str(row["dtype"]), spans[name][1] - spans[name][0]) for name, row in rows.items()}
        last = max((end for _, end in spans.values()), default=0)
    except (AttributeError, KeyError, TypeError, IndexError, ValueError, RecursionError):
        raise _corrupt(path, "its header does not describe tensors") from None
    if last != data_bytes:
        raise _corrupt(path, f"its header describes {last} bytes of data, the file holds {data_bytes}")
    in_order = sorted(spans.values())
    if any(begin < end for (_, end), (begin, _) in pairwise(in_order)):
        raise _corrupt(path, "tensors of its header overlap")
    return {name: (_DTYPES.get(dtype, dtype.lower()), size) for name, (dtype, size) in tensors.items()}


def _length(value: Any) -> int:
    if type(value) is not int or not 0 <= value < _END:
        raise ValueError
    return value


def _span(begin: Any, end: Any) -> tuple[int, int]:
    """Where a tensor lies in the data; raises `ValueError` for what is no place."""
    if type(begin) is not int or type(end) is not int or not 0 <= begin <= end < _END:
        raise ValueError
    return begin, end


def _corrupt(path: Path, why: str) -> BadInput:
    return BadInput(f"{path}: not a usable safetensors file: {why}; download it again")
