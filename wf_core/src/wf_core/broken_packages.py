"""Installed packages that cannot be imported, beside which diffusers or transformers cannot be imported either.

Both ask for optional packages by their metadata and then import them, some without a guard: a wheel that was built for
another torch takes every model class with it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator

from wf_core.errors import BadInput
from wf_core.plugins.manifest_files import installed_version

SUSPECTS = (
    "accelerate",
    "bitsandbytes",
    "flash_attn",
    "flash_attn_interface",
    "gguf",
    "kernels",
    "optimum",
    "peft",
    "sageattention",
    "torchao",
    "torchvision",
    "xformers",
)
"""Modules of optional packages that are imported wherever they are installed."""
HOLDERS = ("accelerate", "diffusers", "peft", "transformers")
"""Those that remember at import which others are there, and are imported anew when one of them is hidden."""


class BrokenPackage(BadInput):
    """An installed package that cannot be imported, and that diffusers imports because it is installed."""

    def __init__(self, package: str, error: BaseException) -> None:
        self.package = package
        super().__init__(
            f"{told(package, error)}, and no diffusers model can be imported beside it: uninstall {package}, or "
            f'install a build of it that fits this torch; sys.modules["{package}"] = None before diffusers is '
            "imported makes it count as not installed"
        )


def told(package: str, error: BaseException) -> str:
    """``the installed package xformers 0.0.35 cannot be imported (RuntimeError: ...)``."""
    version = installed_version(package)
    name = f"{package} {version}" if version else package
    return f"the installed package {name} cannot be imported ({cause(error)})"


def cause(error: BaseException) -> str:
    """The error that an import began with, in one line: libraries that import lazily wrap it."""
    first = list(_chain(error))[-1]
    text = " ".join(str(first).split())
    if isinstance(first, SystemExit):
        return f"it exits at import ({text})" if text else "it exits at import"
    return f"{type(first).__name__}: {text}" if text else type(first).__name__


def culprit(error: BaseException) -> str:
    """The suspect whose code was running when an import failed, the innermost; else the one that the import asked for
    in vain. "" when it was none of them.
    """
    running, wanted = "", ""
    for link in _chain(error):
        running = _innermost(link) or running
        if isinstance(link, ImportError) and _top(link.name or "") in SUSPECTS:
            wanted = _top(link.name or "")
    return running or wanted


def surviving(load: Callable[[], object]) -> None:
    """Import by ``load``, and anew without each suspect that stands in its way, with a line on stderr for each.

    For a program that owns its process: the suspect counts as not installed from then on. What no suspect explains is
    left to whoever imports the same again.
    """
    hidden: set[str] = set()
    while True:
        try:
            load()
            return
        except (Exception, SystemExit) as error:
            package = culprit(error)
            if not package or package in hidden:
                return
            hidden.add(package)
            hide(package)
            sys.stderr.write(f"wf: warning: {told(package, error)}; it counts as not installed here\n")


def hide(package: str) -> None:
    """Make a package count as not installed in this process, and forget what had already looked for it."""
    forgotten = {package, *HOLDERS}
    for name in [name for name in sys.modules if _top(name) in forgotten]:
        del sys.modules[name]
    sys.modules[package] = None  # type: ignore[assignment]


def _innermost(error: BaseException) -> str:
    found, trace = "", error.__traceback__
    while trace is not None:
        top = _top(str(trace.tb_frame.f_globals.get("__name__", "")))
        importing = trace.tb_frame.f_code.co_name == "<module>"
        found = top if top in SUSPECTS and importing else found
        trace = trace.tb_next
    return found


def _chain(error: BaseException) -> Iterator[BaseException]:
    """The error and what it was raised from, the first last."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__ or (None if link.__suppress_context__ else link.__context__)


def _top(name: str) -> str:
    return name.partition(".")[0]
