"""Finding a feature by any of its names, and a model to judge for where none is given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import attrs

from wf_core.errors import BadInput
from wf_core.names import did_you_mean, normalise, switch_key
from wf_core.plugins.catalog import Catalog, Offer, best, offered_twice
from wf_core.resolving.asking import requests_for


@attrs.frozen
class Target:
    """What a name means: one feature, or a name that several features share; with the ways to ask for it."""

    name: str
    requests: tuple[dict[str, Any], ...]
    offers: tuple[Offer, ...]

    @property
    def offer(self) -> Offer | None:
        """The feature, where it is one."""
        return self.offers[0] if len(self.offers) == 1 else None

    def supports(self, family: str) -> bool:
        """Whether some feature of that name supports a family."""
        return any(offer.feature.supports(family) for offer in self.offers)


@attrs.frozen
class AnyModel:
    """A model that was taken because none was named: its name, its family where only an id is known, and why it."""

    name: str
    family: str | None
    why: str


def find(text: str, catalog: Catalog, family: str = "") -> Target:
    """A feature by its name, a switch of it, a selector's value or its plugin; a shared name (``auto``) as it is.

    ``-`` and ``_`` are the same. Raises `BadInput` with the nearest names for one that is not known, and where several
    plugins, or several features of one plugin, answer to it.
    """
    found = _meant(text, catalog)
    if found.requests:
        return found
    offers = best(found.offers, family)
    names = sorted({offer.feature.name for offer in offers})
    if len(names) > 1:
        raise BadInput(f"{text!r} means several features: say which of {', '.join(names)}")
    if len(offers) > 1:
        raise BadInput(offered_twice(names[0], offers))
    return Target(names[0], requests_for(offers[0], catalog), offers)


def any_model(targets: Sequence[str], catalog: Catalog, family: str | None = None) -> AnyModel:
    """The first model with a profile of the first family that supports all the features named.

    Families that can be opened come before those that can only be judged, then they stand in order of their names. A
    family without such a model stands for itself, with nothing known of a model but its family.
    """
    families = [family] if family is not None else _families(catalog)
    if not families:
        raise BadInput("no installed plugin provides a model family: there is no model to judge for")
    wanted = [_meant(text, catalog) for text in targets]
    fitting = [name for name in families if all(target.supports(name) for target in wanted)]
    chosen = (fitting or families)[0]
    models = [m for manifest in catalog.manifests for m in manifest.models if m.family == chosen]
    local = [model for model in models if not model.remote]
    first = next((m for m in local if m.profile is not None), local[0] if local else None)
    both = "both" if len(targets) == 2 else "it"
    which = f" that supports {both}" if targets and fitting else ""
    if first is None:
        return AnyModel(
            f"any {chosen} model", chosen, f"the first family{which}; nothing else of it is known"
        )
    return AnyModel(first.name, None, f"the first model of the first family{which}; --model takes another")


def _families(catalog: Catalog) -> list[str]:
    return sorted(catalog.family_names(), key=lambda name: (bool(catalog.family_state(name)), name))


def _meant(text: str, catalog: Catalog) -> Target:
    """Everything that a name could mean, by the first of its readings that knows it; without requests, one feature."""
    for offers in _readings(text, catalog):
        if offers:
            return Target(text, (), tuple(dict.fromkeys(offers)))
    key = switch_key(text).lower()
    for selector in catalog.selectors.values():
        shared = catalog.group(selector.name, text)
        if shared or key in selector.ambiguous:
            several = shared or _ambiguous(selector.ambiguous[key], selector.name, catalog)
            return Target(text, ({selector.name: key},), several)
    for selector in catalog.selectors.values():
        if key == selector.name.lower():
            values = ", ".join(catalog.selector_values(selector.name))
            raise BadInput(f"{selector.name} takes one of several features: name one of {values}")
    if any(
        text in (model.name, *model.aliases) for manifest in catalog.manifests for model in manifest.models
    ):
        raise BadInput(f"{text!r} is a model and no feature, switch or value: give it with --model")
    raise BadInput(f"no installed plugin has a feature, switch or value {text!r}{_hint(text, catalog)}")


def _readings(text: str, catalog: Catalog) -> Iterator[list[Offer]]:
    offers, name, key = catalog.features(), normalise(text), switch_key(text).lower()
    yield [offer for offer in offers if normalise(offer.feature.name) == name]
    yield [o for o in offers for s in o.switches if key in (s.name.lower(), *(a.lower() for a in s.aliases))]
    yield [offer for s in catalog.selectors for offer in catalog.selected(s, text)]
    yield [offer for offer in offers if offer.plugin == name]


def _ambiguous(values: Iterable[str], selector: str, catalog: Catalog) -> tuple[Offer, ...]:
    return tuple(offer for value in values for offer in catalog.selected(selector, value))


def _hint(text: str, catalog: Catalog) -> str:
    names = {offer.feature.name for offer in catalog.features()}
    names |= {switch.name for offer in catalog.features() for switch in offer.switches}
    names |= {value for selector in catalog.selectors for value in catalog.selector_values(selector)}
    return did_you_mean(text, names, "; `wf list-plugins` lists the features")
