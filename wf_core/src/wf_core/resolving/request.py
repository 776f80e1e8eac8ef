"""Parsing a request: from the keys that a user typed to demands on features, with every problem collected.

``-`` and ``_`` are the same in keys, dots reach into options (``feature_cache.threshold``), and a key at its off
value asks for nothing. Nothing here looks at facts; that is resolving.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import attrs

from wf_core.manifests.options import BadValue, OptionDecl
from wf_core.names import did_you_mean, nearest, suggestion
from wf_core.plugins.catalog import Catalog, Offer
from wf_core.resolving.plan import Change, Violation, shown_request
from wf_core.resolving.request_keys import Asked, differ, distribution_of, gather
from wf_core.resolving.request_switches import (
    OptionOnly,
    TurnedOn,
    is_off,
    problem,
    read_selector,
    read_switch,
)
from wf_core.values import EMPTY, FrozenMap, clipped, freeze, show


@attrs.frozen
class Demand:
    """One feature that the request asks for, with the options that were given.

    ``keys`` are the request's keys that ask for it, ``option_keys`` says which key gave an option, ``typed`` are all of
    them as they were typed. A shared name (``group``, such as ``auto``) leaves a choice among several ``candidates``.
    """

    candidates: tuple[Offer, ...]
    options: FrozenMap = EMPTY
    keys: tuple[str, ...] = ()
    option_keys: FrozenMap = EMPTY
    group: str = ""
    typed: tuple[str, ...] = ()

    @property
    def offer(self) -> Offer:
        """The feature that is meant; the first one where there is a choice."""
        return self.candidates[0]

    @property
    def feature(self) -> str:
        """The feature's name, or the shared name."""
        return self.group or self.offer.feature.name

    @property
    def switch(self) -> str:
        """The key that asked for it first."""
        return self.keys[0] if self.keys else ""

    def names(self, offer: Offer | None = None, options: Iterable[str] = ()) -> tuple[str, ...]:
        """What a refusal about this demand names: its keys, the feature, and the keys that gave these options."""
        feature = (offer or self.offer).feature.name
        given = (str(self.option_keys[name]) for name in options if name in self.option_keys)
        group = (self.group,) if self.group else ()
        return tuple(dict.fromkeys((*self.keys, *group, feature, *given)))


@attrs.frozen
class ParsedRequest:
    """A request in normal form. ``host_keys`` holds every key of the host, given or not, ``aliases`` the other names
    that the user wrote for keys. ``ignored`` are the problems of options whose feature is not asked for, each with the
    demand that asking for it would make.
    """

    request: tuple[tuple[str, Any], ...] = ()
    host_keys: FrozenMap = EMPTY
    demands: tuple[Demand, ...] = ()
    problems: tuple[Violation, ...] = ()
    aliases: FrozenMap = EMPTY
    ignored: tuple[tuple[Violation, Demand], ...] = ()

    def in_the_users_words(self, violation: Violation) -> Violation:
        """The same with every alias that the user wrote beside the key that it stands for."""
        involves = (each for name in violation.involves for each in (name, *self.aliases.get(name, ())))
        return attrs.evolve(violation, involves=tuple(dict.fromkeys(involves)))


def parse_request(request: Mapping[str, Any], catalog: Catalog, family: str = "") -> ParsedRequest:
    """Reads a request against the catalog; where several plugins own a name, the one for ``family`` is meant."""
    return _Parser(catalog, family).parse(request)


def _typed(item: Asked) -> str:
    own = [f"{item.shown}={show(item.value)}"] if item.given else []
    return ", ".join((*own, *(f"{item.shown}.{name}={show(value)}" for name, value in item.nested.items())))


INSTALL = "If another plugin brings it, install that plugin: pip install wf-plugin-NAME."


class _Parser:
    """Collects demands and problems over one request."""

    def __init__(self, catalog: Catalog, family: str) -> None:
        self.catalog = catalog
        self.family = family
        self.problems: list[Violation] = []
        self.demands: dict[tuple[str, str], Demand] = {}
        self.typed: dict[str, str] = {}
        self.ignored: list[tuple[Violation, Asked, OptionOnly]] = []

    def parse(self, request: Mapping[str, Any]) -> ParsedRequest:
        asked, clashes = gather(
            request, lambda key: self.catalog.canonical(key, self.family), self._same_value
        )
        self.typed = {item.key: clipped(_typed(item), 400) for item in asked}
        for clash in clashes:
            who = " and ".join(clash.spelled)
            what = "are one switch and have" if len(clash.spelled) > 1 else "is given twice with"
            involves = tuple(dict.fromkeys((clash.key, *clash.spelled)))
            self._problem("WF-R004", f"{who} {what} different values: {clash.values}.", involves)
        host_keys = {name: freeze(key.option.default) for name, key in self.catalog.host_keys.items()}
        alone: list[tuple[Asked, OptionOnly]] = []
        for item in asked:
            if item.key in self.catalog.host_keys:
                host_keys[item.key] = self._host_key(item, asked)
            else:
                alone += [(item, option) for option in self._turn_on(item)]
        for item, option in alone:
            self._set_option(item, option)
        normal = tuple(sorted(pair for item in asked for pair in item.pairs()))
        aliases = {each.key: tuple(name for name in each.spelled if name != each.key) for each in asked}
        return ParsedRequest(
            normal,
            FrozenMap(host_keys),
            tuple(self.demands.values()),
            tuple(self.problems),
            FrozenMap({key: names for key, names in aliases.items() if names}),
            tuple((told, self._without_its_key(choice.offer)) for told, _, choice in self.ignored),
        )

    def _same_value(self, key: str, one: Any, other: Any) -> bool:
        """Whether two values of a key, given by two of its names, are spellings of one."""
        for switch, offer in self.catalog.switch(key, self.family):
            option = offer.feature.option(switch.option) or OptionDecl(switch.name, "bool")
            try:
                return not differ(option.convert(one, key), option.convert(other, key))
            except BadValue:
                return False
        return False

    def _host_key(self, item: Asked, asked: Iterable[Asked]) -> Any:
        key = self.catalog.host_keys[item.key]
        default = freeze(key.option.default)
        for name in item.nested:
            self._problem("WF-R006", f"{item.key} has no option {name!r}.", (item.key, name))
        if key.only_with and not self._is_given(key.only_with, asked):
            reason = (
                f"{item.key} belongs to {key.only_with}, which is not given, so that it would be ignored."
            )
            self._problem("WF-R005", reason, (item.key, key.only_with))
        try:
            return key.option.convert(item.value, item.key)
        except BadValue as error:
            self._problem("WF-R003", f"{error}.", (item.key,))
            return default

    def _is_given(self, name: str, asked: Iterable[Asked]) -> bool:
        """Whether a key of the host is given with another value than its default, at which it asks for nothing."""
        default = show(self.catalog.host_keys[name].option.default)
        return any(item.key == name and show(item.value).strip().lower() != default for item in asked)

    def _turn_on(self, item: Asked) -> list[OptionOnly]:
        """Adds the demand of one key; returns options that wait for another key to ask for their feature."""
        if item.key in self.catalog.selectors:
            self._choose(item, read_selector(item, self.catalog, self.family))
            return []
        found = self.catalog.switch(item.key, self.family)
        own = self.catalog.family_key(item.key, self.family)
        if own and not any(offer.feature.supports(self.family) for _, offer in found):
            if not item.nested and any(is_off(item.value, switch.off) for switch, _ in found):
                return []
            reason = f"{item.key} is not how models of the family {self.family} are asked for this."
            change = Change(set=((own, item.value),), unset=(item.key,))
            self._problem("WF-R009", reason, (item.key, own, "family"), f"Use {own}.", (change,))
            return []
        if not found:
            self._unknown_key(item)
            return []
        plugins = sorted({offer.plugin for _, offer in found})
        if len(plugins) > 1 and self.catalog.family(self.family) is not None:
            self._problem(
                "WF-P003", f"{item.key} is claimed by {' and '.join(plugins)}; block one.", (item.key,)
            )
            return []
        choice = read_switch(item, *found[0])
        if isinstance(choice, OptionOnly):
            return [choice]
        self._choose(item, choice)
        return []

    def _choose(self, item: Asked, choice: TurnedOn) -> None:
        self.problems += choice.problems
        if choice.group:
            self._choose_from(item, choice)
        elif choice.offers:
            self._demand(item.key, choice.offers[0], choice.options)

    def _choose_from(self, item: Asked, choice: TurnedOn) -> None:
        """A shared name: which feature is meant depends on facts, so that it takes no options of its own."""
        names = ", ".join(offer.feature.name for offer in choice.offers)
        for name in choice.options:
            reason = f"{item.key}={choice.group} chooses among {names} and takes no option {name!r}."
            self._problem(
                "WF-R006", reason, (item.key, choice.group, name), "Name the feature that is meant."
            )
        self.demands[item.key, choice.group] = Demand(
            choice.offers, keys=(item.key,), group=choice.group, typed=(self.typed[item.key],)
        )

    def _demand(self, key: str, offer: Offer, options: Mapping[str, Any], *, turns_on: bool = True) -> None:
        converted = self._convert(key, offer, options)
        place = (offer.plugin, offer.feature.name)
        before = self.demands.get(place, Demand((offer,)))
        keys = tuple(dict.fromkeys((*before.keys, *((key,) if turns_on else ()))))
        for name, value in converted.items():
            if name in before.options and before.options[name] != value:
                given = f"{show(before.options[name])} and {show(value)}"
                both = tuple(dict.fromkeys((*keys, str(before.option_keys[name]), key, name)))
                who = " and ".join(dict.fromkeys((str(before.option_keys[name]), key)))
                reason = f"{who} give {name} of {offer.feature.name} different values: {given}."
                self._problem("WF-R004", reason, both)
        option_keys = {**before.option_keys, **dict.fromkeys(converted, key)}
        self.demands[place] = Demand(
            (offer,),
            FrozenMap({**before.options, **converted}),
            keys,
            FrozenMap(option_keys),
            typed=(*before.typed, self.typed[key]),
        )

    def _convert(self, key: str, offer: Offer, options: Mapping[str, Any]) -> dict[str, Any]:
        converted = {}
        for name, value in options.items():
            option = offer.feature.option(name)
            if option is None:
                names = [known.name for known in offer.feature.options]
                hint = did_you_mean(name, names, f"; its options are {', '.join(names)}" if names else "")
                self._problem("WF-R006", f"{offer.feature.name} has no option {name!r}{hint}.", (key, name))
            elif value is not None:
                shown = key if key in offer.option_names(name) else f"{key}.{name}"
                try:
                    converted[name] = option.convert(value, shown)
                except BadValue as error:
                    self._problem("WF-R003", f"{error}.", tuple(dict.fromkeys((key, name))))
        return converted

    def _set_option(self, item: Asked, choice: OptionOnly) -> None:
        """An option with a switch of its own: refused when its feature is not asked for, whatever its value."""
        place = (choice.offer.plugin, choice.offer.feature.name)
        if place in self.demands:
            self._demand(item.key, choice.offer, {choice.option: item.value}, turns_on=False)
            return
        feature, keys = choice.offer.feature.name, choice.offer.keys()
        reason = f"{item.key} is an option of {feature}, which is not asked for, so that it would be ignored."
        fix = f"Ask for it with {' or '.join(keys) or feature}, or leave out {item.key}."
        involves = tuple(dict.fromkeys((item.key, *keys, feature)))
        self._problem("WF-R005", reason, involves, fix, self._asking_for(choice.offer, item.key))
        self.ignored.append((self.problems[-1], item, choice))

    def _without_its_key(self, offer: Offer) -> Demand:
        """The demand for a feature of which only options are given; values that do not fit are left out."""
        options, keys = {}, {}
        for _, item, choice in self.ignored:
            option = offer.feature.option(choice.option) if choice.offer == offer else None
            try:
                value = option.convert(item.value, item.key) if option is not None else None
            except BadValue:
                continue
            if value is not None:
                options[choice.option], keys[choice.option] = value, item.key
        return Demand((offer,), FrozenMap(options), offer.keys(), FrozenMap(keys))

    def _asking_for(self, offer: Offer, key: str) -> tuple[Change, ...]:
        """The feature's own example; not where it names a file, of which nobody knows but the user."""
        example = tuple(pair for pair in offer.feature.example.items() if pair[0] != key)
        return () if offer.feature.files or not example else (Change(set=example),)

    def _unknown_key(self, item: Asked) -> None:
        distribution = distribution_of(item.key)
        if distribution:
            reason = f"{item.key} belongs to a plugin that is not installed."
            self._problem("WF-R008", reason, (item.key,), f"Install {distribution}.")
            return
        offers = self.catalog.offers(item.key, self.family) or self.catalog.offers(
            item.key.replace("_", "-"), self.family
        )
        if offers and offers[0].feature.example:
            change = Change(set=tuple(offers[0].feature.example.items()), unset=(item.key,))
            fix = f"Ask for it so: {shown_request(change.set)}."
            reason = f"{item.key} is the name of a feature, and no key of a request."
            self._problem("WF-R001", reason, (item.key,), fix, (change,))
            return
        near = nearest(item.key, self.catalog.keys())
        hint = suggestion(near, "; `wf list-plugins --json` lists the switches")
        repairs = tuple(Change(((name, item.value),), (item.key,)) for name in near if item.given)
        reason = f"no installed plugin owns the key {item.key!r}{hint}."
        self._problem("WF-R001", reason, (item.key,), INSTALL, repairs)

    def _problem(
        self,
        code: str,
        reason: str,
        involves: tuple[str, ...],
        fix: str = "",
        repairs: tuple[Change, ...] = (),
    ) -> None:
        self.problems.append(problem(code, reason, involves, fix, repairs))
