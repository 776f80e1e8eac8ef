"""What a comparison needs beside the host: the extra ``compare``. Looked for before anything is computed."""

from __future__ import annotations

from importlib.util import find_spec

from wf_core.errors import BadInput


def require_libraries() -> None:
    """Raise `BadInput` where a library that measures or draws is missing."""
    missing = [name for name in ("skimage", "matplotlib") if find_spec(name) is None]
    if missing:
        raise BadInput(f"cannot compare without {', '.join(missing)}: pip install 'wf-core[compare]'")
