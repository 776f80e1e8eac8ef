"""The catalog: an index over every plugin's manifest, of what a request can name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import attrs

from wf_core import data
from wf_core.errors import BadInput
from wf_core.manifests.declarations import FamilyDecl, FeatureDecl, ModelDecl, Rule, Select, SwitchDecl
from wf_core.manifests.manifest import Manifest
from wf_core.manifests.options import OptionDecl
from wf_core.names import did_you_mean, folded
from wf_core.plugins.discovery import STATES, Discovery, PluginRecord
from wf_core.values import EMPTY, FrozenMap, freeze

PACKAGE_FACT = "package."
Key = TypeVar("Key")
Item = TypeVar("Item")


@attrs.frozen(eq=False)
class Offer:
    """A feature as one plugin offers it, with the state that decides whether it can be used."""

    record: PluginRecord
    feature: FeatureDecl

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.record.name

    @property
    def state(self) -> str:
        """One of the states of discovery."""
        return self.record.feature_state(self.feature)[0]

    @property
    def reason(self) -> str:
        """Why it cannot be used; "" when it can."""
        return self.record.feature_state(self.feature)[1]

    @property
    def declared_only(self) -> str:
        """The reason that the manifest gives for declaring a feature that cannot be activated; "" for none."""
        return self.feature.declared_only

    @property
    def tables(self) -> Mapping[str, frozenset[Any]]:
        """The tables that the feature's conditions may look at."""
        return self.record.manifest.tables if self.record.manifest is not None else {}

    @property
    def switches(self) -> tuple[SwitchDecl, ...]:
        """The switches of this feature."""
        manifest = self.record.manifest
        return manifest.switches_of(self.feature.name) if manifest is not None else ()

    def option_names(self, option: str) -> tuple[str, ...]:
        """An option's name, and the switches that set it: what a refusal about it must name."""
        return (option, *(switch.name for switch in self.switches if switch.option == option))

    def keys(self) -> tuple[str, ...]:
        """The request keys that turn the feature on: switches of its own, then selectors."""
        own = tuple(switch.name for switch in self.switches if switch.form != "option")
        return (*own, *(select.switch for select in self.feature.selects))


@attrs.frozen
class Selector:
    """A switch of the core that picks one feature by name, or by a mapping with ``discriminator``."""

    name: str
    discriminator: str
    off: tuple[str, ...]
    doc: str = ""
    ambiguous: FrozenMap = EMPTY


@attrs.frozen
class HostKey:
    """A request key of the host itself. ``only_with`` is the key without which it would be ignored."""

    option: OptionDecl
    only_with: str = ""


@attrs.frozen(slots=False, eq=False)
class Catalog:
    """Features, switches, selectors, families and models of one discovery."""

    records: tuple[PluginRecord, ...]
    strict: bool = False

    @classmethod
    def of(cls, discovery: Discovery) -> Catalog:
        """The catalog of everything that was discovered, usable or not."""
        return cls(discovery.plugins, discovery.strict)

    @property
    def manifests(self) -> tuple[Manifest, ...]:
        """The manifests of the plugins that are available."""
        return tuple(manifest for _, manifest in self._available())

    # --- features and the keys that lead to them ------------------------------------------------------------------

    def features(self) -> tuple[Offer, ...]:
        """Every feature of every plugin whose manifest could be read, in order of plugins."""
        return self._offers

    def offers(self, name: str, family: str = "") -> tuple[Offer, ...]:
        """The best offers of a feature; more than one when several plugins claim the name equally well."""
        return best([offer for offer in self._offers if offer.feature.name == name], family)

    def switch(self, key: str, family: str = "") -> tuple[tuple[SwitchDecl, Offer], ...]:
        """The switches of that name, else of that alias, with what they turn on, best first."""
        found = self._switches.get(key, ())
        found = (
            tuple(pair for pair in found if pair[0].name == key) or found
        )  # an alias takes no other plugin's key
        chosen = best([offer for _, offer in found], family)
        return tuple(pair for pair in found if pair[1] in chosen)

    def canonical(self, key: str, family: str = "") -> str:
        """A switch's own name for an alias of it; other keys as they are."""
        if key in self.host_keys or key in self.selectors:
            return key
        found = self.switch(key, family)
        return found[0][0].name if found else key

    def selected(self, selector: str, value: str, family: str = "") -> tuple[Offer, ...]:
        """The features that answer to a selector's value; several only where plugins rival for one name."""
        return best(self._selected.get((selector, folded(value)), ()), family)

    def group(self, selector: str, value: str) -> tuple[Offer, ...]:
        """The features among which a shared name of a selector (``auto``, ``flash``) chooses; none for other values."""
        return self._groups.get((selector, folded(value)), ())

    def by_suffix(self, selector: str, value: str) -> tuple[tuple[Select, Offer], ...]:
        """The features that a value picks by its ending, such as ``.gguf``."""
        found = ((select, offer) for offer in self._offers for select in offer.feature.selects)
        return tuple(
            (select, offer)
            for select, offer in found
            if select.switch == selector and select.suffix and value.strip().lower().endswith(select.suffix)
        )

    def selector_values(self, selector: str) -> tuple[str, ...]:
        """Every value that some feature answers to."""
        values = {
            value
            for offer in self._offers
            for select in offer.feature.selects
            if select.switch == selector
            for value in (*select.values, *select.groups)
        }
        return tuple(sorted(values))

    @cached_property
    def _offers(self) -> tuple[Offer, ...]:
        return tuple(
            Offer(record, feature)
            for record in self.records
            if record.manifest is not None
            for feature in record.manifest.features
        )

    @cached_property
    def _switches(self) -> Mapping[str, tuple[tuple[SwitchDecl, Offer], ...]]:
        pairs = (
            (key, (switch, offer))
            for offer in self._offers
            for switch in offer.switches
            for key in (switch.name, *switch.aliases)
        )
        return _gathered(pairs)

    @cached_property
    def _selected(self) -> Mapping[tuple[str, str], tuple[Offer, ...]]:
        return _gathered(self._answers(lambda select: select.values))

    @cached_property
    def _groups(self) -> Mapping[tuple[str, str], tuple[Offer, ...]]:
        return _gathered(self._answers(lambda select: select.groups))

    def _answers(self, names: Callable[[Select], tuple[str, ...]]) -> Iterator[tuple[tuple[str, str], Offer]]:
        for offer in self._offers:
            for select in offer.feature.selects:
                yield from (((select.switch, folded(name)), offer) for name in names(select))

    def keys(self) -> tuple[str, ...]:
        """Every request key that is known: host keys, selectors, switches."""
        switches = {
            switch.name for record in self.records if record.manifest for switch in record.manifest.switches
        }
        return tuple(sorted({*self.host_keys, *self.selectors, *switches}))

    @cached_property
    def selectors(self) -> dict[str, Selector]:
        """The core's selectors by name."""
        rows = data.table("selectors")["selector"]
        return {
            row["name"]: Selector(
                row["name"],
                row["discriminator"],
                tuple(row["off"]),
                row["doc"],
                FrozenMap(row.get("ambiguous")),
            )
            for row in rows
        }

    @cached_property
    def host_keys(self) -> dict[str, HostKey]:
        """The host's own keys by name."""
        found = {}
        for row in data.table("selectors")["host"]:
            fields = {key: freeze(value) for key, value in row.items() if key != "only_with"}
            found[row["name"]] = HostKey(OptionDecl(**fields), row.get("only_with", ""))
        return found

    # --- models -----------------------------------------------------------------------------------------------------

    def family_plugin(self, name: str) -> PluginRecord | None:
        """The plugin that provides a model family and can be used, or None."""
        record = self._families.get(name)
        return record if record is not None and record.state == "available" else None

    @cached_property
    def _families(self) -> Mapping[str, PluginRecord]:
        return {m.family.name: record for record, m in reversed([*self._available()]) if m.family is not None}

    def family_names(self) -> tuple[str, ...]:
        """Every family that an available plugin provides."""
        return tuple(sorted({m.family.name for m in self.manifests if m.family is not None}))

    def family_seams(self, name: str) -> tuple[str, ...] | None:
        """The seams that a family offers; None when no plugin provides it."""
        declared = self.family(name)
        return declared.seams if declared is not None else None

    def family_state(self, name: str) -> str:
        """Why models of a family can be judged only; "" when they can be opened."""
        declared = self.family(name)
        return declared.declared_only if declared is not None else ""

    def family_key(self, key: str, family: str) -> str:
        """The family's own request key for what another family's ``key`` asks for; "" when it names none."""
        declared = self.family(family)
        return str(declared.instead.get(key, "")) if declared else ""

    def family(self, name: str) -> FamilyDecl | None:
        """The declaration of a family that an available plugin provides, or None."""
        record = self.family_plugin(name)
        return record.manifest.family if record is not None and record.manifest is not None else None

    def model(self, name: str) -> ModelDecl | None:
        """A registered model by name or alias, or None."""
        return next((m for _, m in self._models() if name.lower() in _lower((m.name, *m.aliases))), None)

    def model_names(self) -> tuple[str, ...]:
        """The names of all registered models."""
        return tuple(sorted(model.name for _, model in self._models()))

    def model_plugin(self, name: str) -> PluginRecord:
        """The plugin that brings a registered model. Raises `BadInput` when there is none."""
        found = next((r for r, m in self._models() if name.lower() in _lower((m.name, *m.aliases))), None)
        if found is None:
            raise BadInput(f"no model {name!r} is registered{did_you_mean(name, self.model_names())}")
        return found

    def model_directory(self, model: ModelDecl) -> Path:
        """Where a registered model with a ``path`` lies: beside the manifest that declares it."""
        manifest = self.model_plugin(model.name).manifest
        assert manifest is not None
        return manifest.path.parent / model.path

    def feature_plugin(self, name: str) -> str:
        """The plugin that offers a usable feature. Raises `BadInput` with the state and the nearest name."""
        offers = self.offers(name)
        if not offers:
            names = {offer.feature.name for offer in self.features()}
            raise BadInput(f"no installed plugin has a feature {name!r}{did_you_mean(name, names)}")
        if offers[0].state != "available":
            raise BadInput(
                f"feature {name!r} of plugin {offers[0].plugin!r} is {offers[0].state}: {offers[0].reason}"
            )
        if len(offers) > 1:
            raise BadInput(offered_twice(name, offers))
        return offers[0].plugin

    # --- rules and facts --------------------------------------------------------------------------------------------

    def rules(self, core: tuple[Rule, ...]) -> tuple[Rule, ...]:
        """The core's rules and those that available manifests add."""
        return (*core, *(rule for manifest in self.manifests for rule in manifest.rules))

    def packages(self) -> tuple[str, ...]:
        """The packages that conditions ask about, to be looked up as ``package.<name>`` facts."""
        names = {
            ref.name.removeprefix(PACKAGE_FACT)
            for offer in self.features()
            for condition in offer.feature.conditions
            for ref in condition.refs()
            if ref.kind == "fact" and ref.name.startswith(PACKAGE_FACT)
        }
        return tuple(sorted(names))

    def _available(self) -> Iterator[tuple[PluginRecord, Manifest]]:
        for record in self.records:
            if record.manifest is not None and record.state == "available":
                yield record, record.manifest

    def _models(self) -> Iterator[tuple[PluginRecord, ModelDecl]]:
        return ((record, model) for record, manifest in self._available() for model in manifest.models)


def best(offers: Iterable[Offer], family: str = "") -> tuple[Offer, ...]:
    """The offers that fit the family, else all; of those, the ones in the most usable state."""
    found = tuple(offers)
    fitting = tuple(offer for offer in found if family and offer.feature.supports(family)) or found
    rank = min((STATES.index(offer.state) for offer in fitting), default=0)
    return tuple(offer for offer in fitting if STATES.index(offer.state) == rank)


def offered_twice(name: str, offers: Iterable[Offer]) -> str:
    """The sentence about a feature's name that several plugins use."""
    words = sorted({offer.record.block_with for offer in offers})
    return f"feature {name} is offered by {' and '.join(words)}; block one with WF_BLOCK={words[0]}."


def _gathered(pairs: Iterable[tuple[Key, Item]]) -> dict[Key, tuple[Item, ...]]:
    found: dict[Key, tuple[Item, ...]] = {}
    for key, item in pairs:
        found[key] = (*found.get(key, ()), item)
    return found


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)
