"""An attention backend that is one function of a foreign package."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

import torch

from wf_core.api import Facts, Ineligible
from wf_lib_attention import probing
from wf_lib_attention.caching import CachedProvider, Recipe, refusing, require
from wf_lib_attention.call import Call, package_signature, packed
from wf_lib_attention.limits import Limits
from wf_lib_attention.machine import Machine
from wf_lib_attention.packages import function_of, told, unsupported, version_of

_MOST_QUARANTINED = 1024
_NO_PROBE = "not made: the model was not on a CUDA device when the session opened"


class PackageProvider(CachedProvider):
    """Imports its package when a session opens, proves it by one tiny call, and judges every call by its limits.

    A kernel that answers a call with "not supported" is not asked again for calls of that signature as long as the
    session lives. The result of an approximate one is looked at once per run and signature for values that are not
    finite, which waits for the device. Every other error, out-of-memory first of all, is the caller's to see.
    """

    distribution: ClassVar[str]
    module: ClassVar[str]
    function: ClassVar[str]
    approximate: ClassVar[bool] = False
    compiles: ClassVar[bool] = False
    """Whether the first call of a size compiles."""
    loosest: ClassVar[float | None] = 0.1
    """The largest relative error of the probing call that is taken; None where nothing says what is right."""
    limits: Limits
    sign = staticmethod(package_signature)

    def __init__(self, head_dim: int = 128, dtype: torch.dtype = torch.bfloat16) -> None:
        super().__init__()
        self._head_dim, self._dtype = head_dim, dtype
        self._call: Callable[..., Any] | None = None
        self._version = ""
        self._probe = _NO_PROBE
        self._quarantine: dict[tuple[object, ...], str] = {}
        self._compiled: set[tuple[object, ...]] = set()

    @classmethod
    def for_model(cls, facts: Facts | None, **options: Any) -> PackageProvider:
        """The provider for a model with these facts: its probing call has that head size and dtype."""
        known = {} if facts is None else {name: facts.get(f"model.{name}") for name in ("head_dim", "dtype")}
        dtype, head_dim = getattr(torch, str(known.get("dtype")), None), known.get("head_dim")
        if not isinstance(dtype, torch.dtype) or dtype not in cls.limits.dtypes:
            dtype = torch.bfloat16
        return cls(head_dim if isinstance(head_dim, int) and head_dim > 0 else 128, dtype, **options)

    @abstractmethod
    def bind(self, function: Callable[..., Any], call: Call) -> tuple[Recipe, tuple[str, ...]]:
        """How ``function`` of the package serves such a call, and in words what is done around it.

        The recipe may take for granted that the limits hold and that query, key and value lie in memory as kernels
        read it: D has stride 1, and every row begins at a multiple of 16 bytes.
        """

    def load(self) -> Callable[..., Any]:
        """The package's function, imported at the first call. ``Ineligible`` where it cannot be."""
        if self._call is None:
            self._call = function_of(self.module, self.function)
            self._version = version_of(self.distribution)
        return self._call

    def prepare(self, components: Mapping[str, Any]) -> None:
        self.load()
        model = probing.model_of(components)
        device = None if model is None else probing.device_of(model)
        if device is not None and device.type == "cuda":
            self._probe = self._try(device)

    def _try(self, device: torch.device) -> str:
        """One tiny call through everything but the limit of length; what it showed, in words."""
        tensors = probing.inputs(device, self._dtype, self._head_dim)
        what = f"a call of {list(tensors[0].shape)} in {self._dtype} on {device}"
        try:
            with torch.no_grad(), torch.cuda.device_of(tensors[0]):  # type: ignore[no-untyped-call]
                call = Call.of(*tensors, None)
                limits = replace(self.limits, least_tokens=0)
                require(limits.why_not(call, Machine.of(device), self._version))
                out = self._recipe(call)[0](*tensors, None)
                finite, off = bool(out.isfinite().all()), probing.relative_error(out, *tensors)
        except (Ineligible, torch.OutOfMemoryError):
            raise
        except Exception as error:
            raise Ineligible(f"{what} failed with {told(error)}") from error
        if not finite:
            raise Ineligible(f"{what} gave non-finite values")
        if self.loosest is not None and not off <= self.loosest:
            raise Ineligible(f"{what} is wrong: relative error {off:.2g}, at most {self.loosest} is taken")
        return f"{what}: relative error {off:.2g}"

    def _prepare(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        self.load()
        call, sign = Call.of(query, key, value, mask), self.sign(query, key, value, mask)
        require(self.limits.why_not(call, Machine.of(call.device), self._version))
        require(self._not_warm(call, sign))
        recipe, steps = self._recipe(call)
        self._note(f"{self.module}.{self.function}", steps)
        return partial(self._first if self.approximate else self._serve, sign, recipe)

    def _not_warm(self, call: Call, sign: tuple[object, ...]) -> str:
        """Why a kernel that compiles at the first call of a size cannot be recorded yet, or ""."""
        if not self.compiles:
            return ""
        plain = sign[:-1]  # without the word on the capture
        if not call.capturing:
            self._compiled.add(plain)
        elif plain not in self._compiled:
            return (
                f"{self.limits.name} compiles at the first call of a size, which no CUDA graph can record: such a call "
                "has to be made once before"
            )
        return ""

    def _recipe(self, call: Call) -> tuple[Recipe, tuple[str, ...]]:
        recipe, steps = self.bind(self.load(), call)
        if not call.misaligned:
            return recipe, steps
        return partial(_packed, recipe), (f"inputs made contiguous ({call.misaligned})", *steps)

    def _judge(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> Recipe:
        why = self._quarantine.get(self.sign(query, key, value, mask))
        return refusing(why) if why else super()._judge(query, key, value, mask)

    def _serve(
        self,
        sign: tuple[object, ...],
        recipe: Recipe,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """One call. Packages take the current device for that of their inputs, and some change it."""
        try:
            with torch.cuda.device_of(query):  # type: ignore[no-untyped-call]
                return recipe(query, key, value, mask)
        except Exception as error:
            if not unsupported(error):
                raise
            self._set_apart(sign, f"{self.limits.name} does not serve such a call ({told(error)})", error)
            raise

    def _first(
        self,
        sign: tuple[object, ...],
        recipe: Recipe,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        """The first call of a signature: values of the result are looked at, and from then on no more."""
        out = self._serve(sign, recipe, query, key, value, mask)
        if not bool(out.isfinite().all()):
            self._set_apart(sign, f"{self.limits.name} gave non-finite values for such a call")
        self._remember(sign, partial(self._serve, sign, recipe))
        return out

    def _set_apart(self, sign: tuple[object, ...], reason: str, error: Exception | None = None) -> None:
        """Remembers that calls of this signature are not for this kernel, and refuses this one."""
        if len(self._quarantine) >= _MOST_QUARANTINED:
            self._quarantine.clear()
        self._quarantine[sign] = reason
        self._remember(sign, refusing(reason))
        raise Ineligible(reason) from error

    def close(self) -> None:
        super().close()
        self._quarantine.clear()

    def evidence(self) -> Mapping[str, object]:
        """Beside what ran: the package with its version, and what the probing call showed."""
        package = f"{self.distribution} {self._version or 'of unknown version'}"
        return {**super().evidence(), "package": package, "probe": self._probe}


def _packed(
    recipe: Recipe, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
) -> torch.Tensor:
    return recipe(packed(query), packed(key), packed(value), mask)
