"""What a plugin's hook returns: the base classes of techniques, one per kind that the host can run.

A technique is built once per session and lives as long as it. Its handlers are bound into the seams; the host opens
and closes each run around it. A technique raises ``Ineligible`` for a call that it cannot serve: the host then fails
the run, or, with ``on_ineligible="dense"``, counts a fallback and computes that call by the stock code. Raised by
``prepare``, it refuses the session: the feature cannot be used on this machine. It must not catch out-of-memory.

In code that ``torch.compile`` traces, a handler must count nothing and look at neither ``site.path`` nor ``site.index``
(one graph per block would follow). It calls a custom operator instead, whose implementation finds the technique by
``serving(feature)``. Attention providers get that from their base class.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

from wf_core.kinds.counters import FeatureCounters

if TYPE_CHECKING:
    import torch

    from wf_core.kinds.runview import RunView
    from wf_core.kinds.variants import Variants
    from wf_core.model.seams import Handler, Site


class Technique:
    """The common part: life cycle, counters, and the handlers for the seams that the manifest declares."""

    counters: FeatureCounters
    """Set by the host before ``prepare``."""
    variants: Variants
    """What this feature made from the base's weights, shared by sessions on one base; set before ``prepare``."""
    dense_when_ineligible = False
    """Whether calls that it cannot serve go to the stock code (``on_ineligible="dense"``); set by the host, which does
    that itself around handlers: only a custom operator has to look.
    """

    def handlers(self) -> Mapping[str, Handler]:
        """Seam name -> ``handler(inner, site, *args)``. Only seams that the manifest declares are accepted."""
        return {}

    def roles(self) -> Collection[str] | Mapping[str, Collection[str]]:
        """Roles of the sites wanted, on all its seams or by seam; none named for a seam means all of its sites."""
        return ()

    def wants(self, site: Site) -> bool:
        """Whether to be put at a site, which has one of the roles wanted. Called for each while the session opens."""
        return True

    def prepare(self, components: Mapping[str, Any]) -> None:
        """Called once, before the seams are bound, with the session's own copies of the components by name.

        Raises ``Ineligible`` where the feature cannot be used here (a package that does not import, a kernel that does
        not run): the session is refused with the reason, or, if the request left the choice to the host, opened with
        the next candidate.
        """

    def process_settings(self) -> Mapping[str, Any]:
        """Process-wide settings to hold while the session is open, by the names of the guard's ``GLOBAL_SETTERS``.

        Needs the effect ``process-global``: the session then has the process to itself.
        """
        return {}

    def check(self, run: RunView) -> Iterable[str]:
        """Reasons, one sentence each, why this run cannot be served. Called before the first model call."""
        return ()

    def begin(self, run: RunView) -> None:
        """The run begins. Drop whatever an earlier run left."""

    def end(self) -> None:
        """The run has ended, whether it returned, raised or was interrupted. Release every tensor of it."""

    def held_tensors(self) -> Iterable[torch.Tensor]:
        """Tensors kept alive by this technique at this moment (not weights)."""
        return ()

    def evidence(self) -> Mapping[str, object]:
        """Facts to show beside the counters in the report, as plain JSON values."""
        return {}

    def close(self) -> None:
        """The session closes. Release everything."""


class AttentionProvider(Technique, ABC):
    """Computes attention in place of the model's own dispatch."""

    stock_mask: ClassVar[bool] = False
    """Whether masks must come as the stock model makes them. Otherwise a family may leave out the keys that nobody
    attends to, and the mask with them: the same result to rounding, for kernels that take no mask.
    """

    @abstractmethod
    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """Scaled dot-product attention with scale ``head_dim ** -0.5``.

        ``query`` is ``[B, Lq, H, D]``; ``key`` and ``value`` are ``[B, Lk, Hk, D]``, where Hk divides H and query head
        h belongs to key head ``h // (H / Hk)``; ``mask`` is None, or boolean with True for pairs that attend,
        broadcastable to ``[B, H, Lq, Lk]``. Returns ``[B, Lq, H, D]`` in the query's dtype; rows that attend to
        nothing are zeros. Raises ``Ineligible`` with the reason for a call that the kernel cannot serve.
        """

    def handlers(self) -> Mapping[str, Handler]:
        from wf_core.kinds import operators

        self._is_compiling: Callable[[], bool] = operators.is_compiling
        self._in_graph: Callable[..., torch.Tensor] = operators.attend
        return {"attention": self._around}

    def _around(
        self,
        inner: Callable[..., torch.Tensor],
        site: Site,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
    ) -> torch.Tensor:
        if self._is_compiling():
            return self._in_graph(query, key, value, mask, self.counters.feature)
        return self.counted(query, key, value, mask)

    def counted(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None
    ) -> torch.Tensor:
        """``attend``, with the attempt and the success counted and the shape of the result checked."""
        self.counters.add("attempts")
        out = self.attend(query, key, value, mask)
        if out.shape != query.shape:
            raise ValueError(
                f"attend() must give a tensor of shape {tuple(query.shape)}, not {tuple(out.shape)}"
            )
        self.counters.add("successes")
        return out


class VaeDecoder(Technique, ABC):
    """Stands around (or in place of) the VAE's decoding of one batch of latents."""

    @abstractmethod
    def decode(self, inner: Callable[[torch.Tensor], torch.Tensor], latents: torch.Tensor) -> torch.Tensor:
        """``latents`` ``[B, C, T, H, W]``, de-normalised -> video ``[B, 3, F, H', W']`` in [-1, 1].

        ``inner(latents)`` decodes by the next layer, in the end by the stock VAE.
        """

    def handlers(self) -> Mapping[str, Handler]:
        return {"vae.decode": self._around}

    def _around(self, inner: Callable[..., torch.Tensor], site: Site, latents: torch.Tensor) -> torch.Tensor:
        return self.decode(inner, latents)
