"""The process-wide settings that the host watches: how to read each, set it back, and what it is when fresh.

torch and diffusers are looked up in ``sys.modules`` and never imported from here, so a command that lists plugins
can capture the process without paying for either.

TF32 has two interfaces in torch. The old booleans (``allow_tf32``) raise as soon as anybody has used the new
``fp32_precision`` properties inconsistently, and announced their own end with a warning in some versions. The new
properties never raise and never warn, so they are what is read. Writing is the other way round: the old setters
keep both worlds in step, so they are used wherever they can express the value.
"""

from __future__ import annotations

import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from attrs import frozen

ATTENTION_DISPATCH = "diffusers.models.attention_dispatch"
#: What ``matmul_precision`` reads as while old and new settings contradict each other (torch raises then).
MIXED = "mixed"

_HOOK_TABLES = (
    "_global_module_registration_hooks",
    "_global_parameter_registration_hooks",
    "_global_buffer_registration_hooks",
    "_global_forward_pre_hooks",
    "_global_forward_hooks",
    "_global_forward_hooks_always_called",
    "_global_forward_hooks_with_kwargs",
    "_global_backward_pre_hooks",
    "_global_backward_hooks",
)
_quiet_lock = threading.Lock()


@frozen
class Setting:
    """One process-wide setting of one library.

    ``fresh`` is its value in a process which has just imported the library and done nothing else: the baseline
    where the library arrived after the state was captured. ``per_thread`` settings say nothing about other threads.
    """

    name: str
    read: Callable[[Any], Any]
    write: Callable[[Any, Any], None]
    fresh: Callable[[Any], Any]
    module: str = "torch"
    per_thread: bool = False
    show: Callable[[Any], str] = str


@contextmanager
def quietly() -> Iterator[None]:
    """Silence the deprecation notices of the old TF32 setters.

    ``catch_warnings`` is itself process-wide, hence the lock: two restores in two threads must not leave each
    other's filters behind.
    """
    with _quiet_lock, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def _attribute(name: str, path: str, fresh: Any | Callable[[], Any]) -> Setting:
    """A setting that is a plain attribute of an object reachable from the library, e.g. ``backends.fp32_precision``."""
    *parents, leaf = path.split(".")

    def owner(library: Any) -> Any:
        for parent in parents:
            library = getattr(library, parent)
        return library

    return Setting(
        name,
        lambda library: getattr(owner(library), leaf),
        lambda library, value: setattr(owner(library), leaf, value),
        lambda library: fresh() if callable(fresh) else fresh,
    )


def _tf32_forced() -> bool:
    """torch's own variable for a process that starts with TF32 matrix products."""
    return os.environ.get("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE") == "1"


def _sdpa(kind: str) -> Setting:
    return Setting(
        f"sdpa_{kind}",
        lambda torch: getattr(torch.backends.cuda, f"{kind}_sdp_enabled")(),
        lambda torch, value: getattr(torch.backends.cuda, f"enable_{kind}_sdp")(value),
        lambda torch: True,
    )


def _read_matmul_precision(torch: Any) -> str:
    try:
        return str(torch.get_float32_matmul_precision())
    except RuntimeError:
        return MIXED


def _write_matmul_precision(torch: Any, value: str) -> None:
    if value == MIXED:
        return  # nothing to ask for: the fp32_* settings, written after this one, bring the contradiction back
    with quietly():
        torch.set_float32_matmul_precision(value)


def _read_convolution(torch: Any) -> tuple[str, str]:
    cudnn = torch.backends.cudnn
    return cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision


def _write_convolution(torch: Any, value: tuple[str, str]) -> None:
    cudnn = torch.backends.cudnn
    if value in (("tf32", "tf32"), ("none", "none")):
        with quietly():  # what the old boolean can say is said through it, so that reading it keeps working
            cudnn.allow_tf32 = value[0] == "tf32"
    if _read_convolution(torch) != value:
        cudnn.conv.fp32_precision, cudnn.rnn.fp32_precision = value


def _read_deterministic(torch: Any) -> tuple[bool, bool]:
    return torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()


def _write_deterministic(torch: Any, value: tuple[bool, bool]) -> None:
    torch.use_deterministic_algorithms(value[0], warn_only=value[1])


def _read_default_device(torch: Any) -> Any:
    context = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return None if context is None else context.device


def _read_module_hooks(torch: Any) -> tuple[tuple[str, tuple[Any, ...]], ...]:
    module = torch.nn.modules.module
    return tuple((name, tuple(getattr(module, name, {}).items())) for name in _HOOK_TABLES)


def _write_module_hooks(torch: Any, value: tuple[tuple[str, tuple[Any, ...]], ...]) -> None:
    for name, entries in value:
        table = getattr(torch.nn.modules.module, name, {})
        table.clear()
        table.update(entries)


def _show_module_hooks(value: tuple[tuple[str, tuple[Any, ...]], ...]) -> str:
    return ", ".join(f"{len(entries)} in {name}" for name, entries in value if entries) or "none"


def _show_function(value: Any) -> str:
    return f"{getattr(value, '__module__', None)}.{getattr(value, '__qualname__', repr(value))}"


def _read_interrupt(_: Any) -> Any:
    """From a module imported above, so that no fresh value is guessed: ``nohup wf ... &`` ignores Ctrl-C."""
    return signal.getsignal(signal.SIGINT)


def _write_interrupt(_: Any, value: Any) -> None:
    """Python lets the main thread alone set a handler; elsewhere the difference stays and is reported."""
    if threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGINT, value)


_INTERPRETER = (
    Setting(
        "working_directory",
        lambda os: os.getcwd(),
        lambda os, value: os.chdir(value),
        lambda os: "",
        module="os",
    ),
    Setting(
        "recursion_limit",
        lambda sys: min(sys.getrecursionlimit(), 1000),  # compiling raises it, and that harms nobody
        lambda sys, value: sys.setrecursionlimit(value),
        lambda sys: 1000,
        module="sys",
    ),
    Setting(
        "handler_of_interrupts",
        _read_interrupt,
        _write_interrupt,
        _read_interrupt,
        module="signal",
    ),
    Setting(
        "logging_disabled_below",
        lambda logging: logging.root.manager.disable,
        lambda logging, value: logging.disable(value),
        lambda logging: 0,
        module="logging",
    ),
)

#: In the order of writing: the old matmul setting first, then the parents of the new ones, then their children.
_ALL = (
    *_INTERPRETER,
    Setting(
        "threads_of_torch",
        lambda torch: torch.get_num_threads(),
        lambda torch, value: torch.set_num_threads(value),
        lambda torch: torch.get_num_threads(),
    ),
    Setting(
        "default_dtype",
        lambda torch: torch.get_default_dtype(),
        lambda torch, value: torch.set_default_dtype(value),
        lambda torch: torch.float32,
    ),
    _sdpa("flash"),
    _sdpa("mem_efficient"),
    _sdpa("math"),
    _sdpa("cudnn"),
    Setting(
        "matmul_precision",
        _read_matmul_precision,
        _write_matmul_precision,
        lambda torch: "high" if _tf32_forced() else "highest",
    ),
    _attribute("fp32_all", "backends.fp32_precision", "none"),
    _attribute("fp32_cudnn", "backends.cudnn.fp32_precision", "none"),
    _attribute(
        "fp32_cuda_matmul",
        "backends.cuda.matmul.fp32_precision",
        lambda: "tf32" if _tf32_forced() else "none",
    ),
    Setting("fp32_cudnn_conv_rnn", _read_convolution, _write_convolution, lambda torch: ("tf32", "tf32")),
    _attribute("fp32_mkldnn_matmul", "backends.mkldnn.matmul.fp32_precision", "none"),
    _attribute("fp32_mkldnn_conv", "backends.mkldnn.conv.fp32_precision", "none"),
    _attribute("fp32_mkldnn_rnn", "backends.mkldnn.rnn.fp32_precision", "none"),
    Setting("deterministic", _read_deterministic, _write_deterministic, lambda torch: (False, False)),
    _attribute("cudnn_benchmark", "backends.cudnn.benchmark", False),
    _attribute("cudnn_deterministic", "backends.cudnn.deterministic", False),
    Setting(
        "grad_mode_of_this_thread",
        lambda torch: torch.is_grad_enabled(),
        lambda torch, value: torch._C._set_grad_enabled(value),
        lambda torch: True,
        per_thread=True,
    ),
    Setting(
        "default_device_of_this_thread",
        _read_default_device,
        lambda torch, value: torch.set_default_device(value),
        lambda torch: None,
        per_thread=True,
    ),
    Setting(
        "global_module_hooks",
        _read_module_hooks,
        _write_module_hooks,
        lambda torch: tuple((name, ()) for name in _HOOK_TABLES),
        show=_show_module_hooks,
    ),
    Setting(
        "sdpa_function",
        lambda torch: torch.nn.functional.scaled_dot_product_attention,
        lambda torch, value: setattr(torch.nn.functional, "scaled_dot_product_attention", value),
        lambda torch: torch._C._nn.scaled_dot_product_attention,
        show=_show_function,
    ),
    Setting(
        "diffusers_attention_backend",
        lambda dispatch: dispatch._AttentionBackendRegistry._active_backend,
        lambda dispatch, value: dispatch._AttentionBackendRegistry.set_active_backend(value),
        lambda dispatch: dispatch.AttentionBackendName(dispatch.DIFFUSERS_ATTN_BACKEND),
        module=ATTENTION_DISPATCH,
    ),
)

SETTINGS: Mapping[str, Setting] = {setting.name: setting for setting in _ALL}
