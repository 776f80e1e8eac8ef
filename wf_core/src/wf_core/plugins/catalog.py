"""The catalog: an index over every plugin's manifest, of what a request can name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import attrs

from wf_core import data
from wf_core.errors import BadInput
from wf_core.manifests.declarations import FeatureDecl, ModelDecl, Rule, SwitchDecl
from wf_core.manifests.manifest import Manifest
from wf_core.manifests.options import OptionDecl
from wf_core.names import did_you_mean, switch_key
from wf_core.plugins.discovery import STATES, Discovery, FeatureState, PluginRecord
from wf_core.values import freeze

PACKAGE_FACT = "package."


@attrs.frozen
class Offer:
    """A feature as one plugin offers it, with the state that decides whether it can be used."""

    record: PluginRecord
    feature: FeatureDecl
    state: str
    reason: str

    @property
    def plugin(self) -> str:
        """The plugin's name."""
        return self.record.name

    @property
    def tables(self) -> Mapping[str, frozenset[Any]]:
        """The tables that the feature's conditions may look at."""
        return self.record.manifest.tables if self.record.manifest is not None else {}

    @property
    def switches(self) -> tuple[SwitchDecl, ...]:
        """The switches of this feature."""
        switches = self.record.manifest.switches if self.record.manifest is not None else ()
        return tuple(switch for switch in switches if switch.feature == self.feature.name)

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


@attrs.frozen
class HostKey:
    """A request key of the host itself. While it is not ``available``, only its off value is accepted."""

    option: OptionDecl
    available: bool = True


@attrs.define(slots=False)
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

    def features(self) -> Iterator[Offer]:
        """Every feature of every plugin whose manifest could be read, in order of plugins."""
        for record in self.records:
            for item in record.features():
                yield _offer(record, item)

    def offers(self, name: str, family: str = "") -> tuple[Offer, ...]:
        """The best offers of a feature; more than one when several plugins claim the name equally well."""
        return best([offer for offer in self.features() if offer.feature.name == name], family)

    def switch(self, key: str, family: str = "") -> tuple[tuple[SwitchDecl, Offer], ...]:
        """The switches of that name or alias, with what they turn on, best first."""
        found = [
            (switch, offer)
            for offer in self.features()
            for switch in offer.switches
            if key in (switch.name, *switch.aliases)
        ]
        chosen = best([offer for _, offer in found], family)
        return tuple(pair for pair in found if pair[1] in chosen)

    def selected(self, selector: str, value: str, family: str = "") -> tuple[Offer, ...]:
        """The features that answer to a selector's value."""
        wanted = switch_key(value).lower()
        found = [
            offer
            for offer in self.features()
            for select in offer.feature.selects
            if select.switch == selector and wanted in [switch_key(name).lower() for name in select.values]
        ]
        return best(found, family)

    def selector_values(self, selector: str) -> tuple[str, ...]:
        """Every value that some feature answers to."""
        values = {
            value
            for offer in self.features()
            for select in offer.feature.selects
            if select.switch == selector
            for value in select.values
        }
        return tuple(sorted(values))

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
            row["name"]: Selector(row["name"], row["discriminator"], tuple(row["off"]), row["doc"])
            for row in rows
        }

    @cached_property
    def host_keys(self) -> dict[str, HostKey]:
        """The host's own keys by name."""
        found = {}
        for row in data.table("selectors")["host"]:
            fields = {key: freeze(value) for key, value in row.items() if key != "available"}
            found[row["name"]] = HostKey(OptionDecl(**fields), row.get("available", True))
        return found

    # --- models -----------------------------------------------------------------------------------------------------

    def family_plugin(self, name: str) -> PluginRecord | None:
        """The plugin that provides a model family and can be used, or None."""
        for record, manifest in self._available():
            if manifest.family is not None and manifest.family.name == name:
                return record
        return None

    def family_names(self) -> tuple[str, ...]:
        """Every family that an available plugin provides."""
        return tuple(sorted({m.family.name for m in self.manifests if m.family is not None}))

    def family_seams(self, name: str) -> tuple[str, ...] | None:
        """The seams that a family offers; None when no plugin provides it."""
        record = self.family_plugin(name)
        return record.manifest.family.seams if record and record.manifest and record.manifest.family else None

    def family_key(self, key: str, family: str) -> str:
        """The family's own request key for what another family's ``key`` asks for; "" when it names none."""
        record = self.family_plugin(family)
        declared = record.manifest.family if record and record.manifest else None
        return str(declared.instead.get(key, "")) if declared else ""

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

    def own_rules(self) -> tuple[Rule, ...]:
        """The rules that available manifests add."""
        return tuple(rule for manifest in self.manifests for rule in manifest.rules)

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


def _offer(record: PluginRecord, item: FeatureState) -> Offer:
    return Offer(record, item.feature, item.state, item.reason)


def _lower(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(name.lower() for name in names)
