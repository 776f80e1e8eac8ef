"""The smallest requests that turn a feature on, and one request for two features where there is one."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from wf_core.manifests.declarations import Select, SwitchDecl
from wf_core.manifests.options import OptionDecl
from wf_core.names import switch_key
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.values import thaw

Request = dict[str, Any]
Spread = tuple[str, dict[str, Any]]
"""What turns a feature on by itself (a key, or a selector's name for it), and the options beside it."""


def requests_for(offer: Offer, catalog: Catalog) -> tuple[Request, ...]:
    """Every way to ask for a feature by one key of its own, smallest first: the manifest's example before all others.

    The options that the example gives are given in the other ways too. Empty for a feature that no key turns on.
    """
    example = {key: thaw(value) for key, value in offer.feature.example.items()}
    options = _options_in(example, offer, catalog)
    ways = [example] if example else []
    ways += [way for switch in offer.switches for way in _by_switch(switch, offer, options)]
    ways += [way for select in offer.feature.selects for way in _by_selector(select, catalog, options)]
    return tuple(way for number, way in enumerate(ways) if way not in ways[:number])


def together(
    one: tuple[Request, ...], other: tuple[Request, ...], canonical: Callable[[str], str]
) -> Request | None:
    """The first pair of ways that share no key, as one request; None where every way needs the same key."""
    for left in one:
        taken = {canonical(_head(key)) for key in left}
        for right in other:
            if taken.isdisjoint(canonical(_head(key)) for key in right):
                return {**left, **right}
    return None


def shared_keys(one: tuple[Request, ...], other: tuple[Request, ...]) -> tuple[str, ...]:
    """The keys that the smallest requests of two features both need."""
    left, right = ({_head(key) for key in ways[0]} if ways else set() for ways in (one, other))
    return tuple(sorted(left & right))


def _head(key: str) -> str:
    return switch_key(key).partition(".")[0]


def _options_in(example: Mapping[str, Any], offer: Offer, catalog: Catalog) -> dict[str, Any]:
    """The options of the feature that a request for it gives."""
    found: dict[str, Any] = {}
    for key, value in example.items():
        head, _, path = switch_key(key).partition(".")
        switch = next((s for s in offer.switches if head in (s.name, *s.aliases)), None)
        if path:
            found[path] = value
        elif isinstance(value, Mapping):
            selector = catalog.selectors.get(head)
            found.update({k: v for k, v in value.items() if selector is None or k != selector.discriminator})
        elif switch is not None and switch.option:
            found[switch.option] = value
    return found


def _by_switch(switch: SwitchDecl, offer: Offer, options: Mapping[str, Any]) -> Iterator[Request]:
    if switch.form == "flag" and not options:
        yield {switch.name: True}
    elif switch.form == "feature":
        yield {switch.name: dict(options) or True}
    elif switch.form == "value":
        value = options.get(switch.option, _any_value(offer.feature.option(switch.option), switch))
        rest = {f"{switch.name}.{name}": item for name, item in options.items() if name != switch.option}
        if value is not None:
            yield {switch.name: value, **rest}


def _by_selector(select: Select, catalog: Catalog, options: Mapping[str, Any]) -> Iterator[Request]:
    selector = catalog.selectors.get(select.switch)
    if selector is not None and select.values:
        name = select.values[0]
        yield {select.switch: {selector.discriminator: name, **options} if options else name}


def _any_value(option: OptionDecl | None, switch: SwitchDecl) -> Any:
    """A value that turns a switch on: the default, else the first choice, else something of the option's type."""
    if option is None:
        return None
    plain = {"bool": True, "int": max(1, int(option.min or 1)), "str": "x", "path": "x"}
    offered = (option.default, *option.choices, plain.get(option.type))
    return next((thaw(value) for value in offered if value is not None and value not in switch.off), None)
