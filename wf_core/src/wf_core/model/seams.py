"""Seams: the named places in a model where something can be put around, or in place of, the stock computation.

A model family wraps its stock computation once per site with ``Seams.wrap``; the result is a plain callable bound
at session start. Nothing is dispatched per call, and a seam that nobody claims costs nothing: ``wrap`` returns the
stock callable itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from attrs import frozen

from wf_core.manifests.vocabulary import SEAMS

__all__ = ["SEAMS", "Claim", "Handler", "Seams", "Site"]

Handler = Callable[..., Any]
"""``handler(inner, site, *args)``: ``inner(*args)`` is the next layer, or the stock computation.

Tensors that come in and go out may be kept by other layers: a handler writes over none that it has not made itself.
"""


@frozen
class Site:
    """Where in the model a wrapped computation stands.

    ``path`` is the module path below its root (``"blocks.3.attn1"``); ``role`` is ``self``, ``cross``, ``image`` or
    ``joint`` for attention; ``self``, ``cross``, ``joint`` or ``ffn`` for a branch and for its norm and residual, but
    ``text`` for those of a text stream beside the image's; the layer's path below its block for ``linear``
    (``"attn1.to_q"``); ``frame`` for a ``time_embedding`` whose timesteps are those of frames; otherwise empty.
    """

    seam: str
    root: str = ""
    path: str = ""
    index: int = -1
    role: str = ""


@frozen
class Claim:
    feature: str
    handler: Handler
    roles: tuple[str, ...] = ()
    """Sites this claim is for; empty means every site of the seam."""
    wants: Callable[[Site], bool] | None = None
    """Which of these sites; None means all."""

    def covers(self, site: Site) -> bool:
        """Whether this claim is for a site of its seam."""
        return (not self.roles or site.role in self.roles) and (self.wants is None or self.wants(site))


class Seams:
    """The claims of one session, in composition order: the first claim is the outermost layer."""

    def __init__(self) -> None:
        self._claims: dict[str, list[Claim]] = {}
        self._sites: dict[str, int] = {}

    def claim(
        self,
        seam: str,
        feature: str,
        handler: Handler,
        roles: Iterable[str] = (),
        wants: Callable[[Site], bool] | None = None,
    ) -> None:
        """The host's: adds a layer to every site of a seam, or to those of some roles, below the layers before it."""
        if seam not in SEAMS:
            raise KeyError(f"no seam is called {seam!r}; seams are {', '.join(SEAMS)}")
        self._claims.setdefault(seam, []).append(Claim(feature, handler, tuple(roles), wants))

    def claimed(self, *seams: str) -> bool:
        """Whether any of the given seams has a claim."""
        return any(self._claims.get(seam) for seam in seams)

    def claimants(self, seam: str) -> tuple[str, ...]:
        """The features that claim a seam, the outermost first."""
        return tuple(claim.feature for claim in self._claims.get(seam, ()))

    def wrap(self, site: Site, stock: Callable[..., Any]) -> Callable[..., Any]:
        """The stock computation of one site with every claim around it; ``stock`` itself if there is none."""
        call = stock
        for claim in reversed(self._claims.get(site.seam, ())):
            if not claim.covers(site):
                continue
            call = partial(claim.handler, call, site)
            self._sites[claim.feature] = self._sites.get(claim.feature, 0) + 1
        return call

    def attached(self, feature: str) -> int:
        """How many sites the feature is attached to: 0 after installation means that it can have no effect."""
        return self._sites.get(feature, 0)
