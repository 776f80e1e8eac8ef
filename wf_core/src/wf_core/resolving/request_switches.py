"""What one key of a request means: a selector's value, or one of the four forms of a switch."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import attrs

from wf_core.manifests.declarations import SwitchDecl
from wf_core.manifests.options import BadValue, OptionDecl
from wf_core.names import folded, nearest, suggestion, switch_key
from wf_core.plugins.catalog import Catalog, Offer, Selector
from wf_core.resolving.plan import Change, Violation
from wf_core.resolving.request_keys import Asked, differ, distribution_of
from wf_core.values import freeze, show


@attrs.frozen
class TurnedOn:
    """The feature that a key turns on (none for an off value or a problem), and the options that it gives.

    Several where a shared name, ``group``, leaves a choice.
    """

    offers: tuple[Offer, ...] = ()
    options: Mapping[str, Any] = attrs.field(factory=dict)
    problems: tuple[Violation, ...] = ()
    group: str = ""


@attrs.frozen
class OptionOnly:
    """A switch that sets one option of a feature that another key must ask for."""

    offer: Offer
    option: str


OFF = TurnedOn()


def read_selector(item: Asked, catalog: Catalog, family: str) -> TurnedOn:
    """A selector's value: a name, or a mapping with the discriminator and options."""
    selector = catalog.selectors[item.key]
    options, clash = _options(item, selector.discriminator)
    if clash:
        return TurnedOn(problems=(clash,))
    name = options.pop(selector.discriminator, None)
    if name is None:
        wanted = f"{selector.discriminator} (one of {', '.join(catalog.selector_values(item.key)) or 'none installed'})"
        reason = f"{item.key} must say which feature is meant: a name, or a mapping with {wanted}."
        return _problem("WF-R002", reason, item.key)
    if name is False or (isinstance(name, str) and name.strip().lower() in selector.off):
        return _off(item.key, options)
    if not isinstance(name, str):
        reason = f"{item.key} expects a name or a mapping with {selector.discriminator!r}, got {show(name)}."
        return _problem("WF-R003", reason, item.key)
    return _selected(item.key, selector, name, options, catalog, family)


def _selected(
    key: str, selector: Selector, name: str, options: Mapping[str, Any], catalog: Catalog, family: str
) -> TurnedOn:
    if name.strip().lower() in selector.ambiguous:
        candidates = selector.ambiguous[name.strip().lower()]
        several = ", ".join(candidates)
        reason = f"{key}={name} is ambiguous, projects call different techniques so: say which of {several} is meant."
        changes = tuple(_with_name(key, selector, other, options) for other in candidates)
        return _problem("WF-R010", reason, key, name, *candidates, changes=changes)
    offers = catalog.selected(key, name, family)
    if len(offers) == 1:
        return TurnedOn(offers, options)
    if offers:
        plugins = ", ".join(sorted(f"{offer.feature.name} of {offer.plugin}" for offer in offers))
        reason = f"{key}={name} is answered by several features: {plugins}."
        return _problem("WF-P003", reason, key, name, fix="Block one of the plugins.")
    group = catalog.group(key, name)
    if group:
        fitting = tuple(offer for offer in group if not family or offer.feature.supports(family)) or group
        return TurnedOn(fitting, options, group=folded(name))
    ending = catalog.by_suffix(key, name)
    if ending:
        select, offer = ending[0]
        return TurnedOn((offer,), {select.suffix_option: name, **options})
    return _unknown_value(key, selector, name, options, catalog)


def _unknown_value(
    key: str, selector: Selector, name: str, options: Mapping[str, Any], catalog: Catalog
) -> TurnedOn:
    distribution = distribution_of(key, name)
    if distribution:
        reason = f"{key}={name} belongs to a plugin that is not installed."
        return _problem("WF-R008", reason, key, name, fix=f"Install {distribution}.")
    values = (*catalog.selector_values(key), *selector.off)
    near = nearest(name, values)
    hint = suggestion(near, f"; known are {', '.join(values) or 'none'}")
    changes = tuple(_with_name(key, selector, other, options) for other in near)
    return _problem(
        "WF-R002", f"{key} has no {selector.discriminator} {name!r}{hint}.", key, name, changes=changes
    )


def _with_name(key: str, selector: Selector, name: str, options: Mapping[str, Any]) -> Change:
    """The same request of another feature."""
    value = {selector.discriminator: name, **options} if options else name
    return Change(set=((key, freeze(value)),))


def _problem(
    code: str, reason: str, *names: str, fix: str = "", changes: tuple[Change, ...] = ()
) -> TurnedOn:
    return TurnedOn(problems=(problem(code, reason, names, fix, changes),))


def problem(
    code: str, reason: str, involves: tuple[str, ...], fix: str = "", repairs: tuple[Change, ...] = ()
) -> Violation:
    """What is wrong with a request before any fact is looked at."""
    return Violation(code, "forbid", reason.replace("?.", "?"), involves, fix, repairs=repairs)


def read_switch(item: Asked, switch: SwitchDecl, offer: Offer) -> TurnedOn | OptionOnly:
    """A switch by its form; a value that its option does not take is a problem, not an exception."""
    if switch.form == "option":
        return OptionOnly(offer, switch.option)
    if item.given and is_off(item.value, switch.off):
        return _off(item.key, item.nested)
    try:
        on, options = _FORMS[switch.form](item, switch, offer)
    except BadValue as error:
        return _problem("WF-R003", f"{error}.", item.key)
    if not on:
        return _off(item.key, item.nested)
    clash = _clash(item.key, options, item.nested)
    return TurnedOn(problems=(clash,)) if clash else TurnedOn((offer,), {**options, **_named(item.nested)})


def _flag(item: Asked, switch: SwitchDecl, offer: Offer) -> tuple[bool, dict[str, Any]]:
    return _needed(item) and bool(OptionDecl(switch.name, "bool").convert(item.value, item.key)), {}


def _value(item: Asked, switch: SwitchDecl, offer: Offer) -> tuple[bool, dict[str, Any]]:
    _needed(item)
    option = offer.feature.option(switch.option)
    value = option.convert(item.value, item.key) if option is not None else item.value
    return not is_off(value, switch.off), {switch.option: value}


def _feature(item: Asked, switch: SwitchDecl, offer: Offer) -> tuple[bool, dict[str, Any]]:
    value = item.value
    if not item.given:
        return True, {}
    if isinstance(value, Mapping):
        return True, _named(value)
    try:
        return bool(OptionDecl(switch.name, "bool").convert(value, item.key)), {}
    except BadValue:
        shorthand = offer.feature.option(switch.shorthand or switch.option)
    if shorthand is None:
        raise BadValue(item.key, f"expects true, false or a mapping of options, got {show(value)}")
    return True, {shorthand.name: shorthand.convert(value, item.key)}


_FORMS = {"flag": _flag, "value": _value, "feature": _feature}


def _needed(item: Asked) -> bool:
    if not item.given:
        below = ", ".join(f"{item.key}.{name}" for name in item.nested)
        raise BadValue(item.key, f"needs a value of its own beside {below}")
    return True


def _options(item: Asked, discriminator: str) -> tuple[dict[str, Any], Violation | None]:
    """The selector's value as one mapping with the discriminator and the options of dotted keys in it."""
    own = (
        _named(item.value)
        if isinstance(item.value, Mapping)
        else {discriminator: item.value}
        if item.given
        else {}
    )
    return {**own, **_named(item.nested)}, _clash(item.key, own, item.nested)


def _named(options: Mapping[str, Any]) -> dict[str, Any]:
    return {switch_key(name): value for name, value in options.items()}


def _clash(key: str, own: Mapping[str, Any], nested: Mapping[str, Any]) -> Violation | None:
    for name, value in _named(nested).items():
        if name in own and differ(own[name], value):
            reason = f"{key} and {key}.{name} give different values: {show(own[name])} and {show(value)}."
            return problem("WF-R004", reason, (key, name))
    return None


def _off(key: str, options: Mapping[str, Any]) -> TurnedOn:
    """A key at its off value asks for nothing; options beside it would be ignored."""
    if not options:
        return OFF
    reason = f"{key} is off, so that {', '.join(f'{key}.{name}' for name in options)} would be ignored."
    return _problem("WF-R005", reason, key, *options)


def is_off(value: Any, off: tuple[Any, ...]) -> bool:
    """Whether a value is one of a switch's off values, in any spelling."""
    if isinstance(value, str):
        return value.strip().lower() in [show(other).lower() for other in off]
    return any(isinstance(value, bool) == isinstance(other, bool) and freeze(value) == other for other in off)
