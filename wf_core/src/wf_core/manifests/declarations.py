"""What a manifest declares, as frozen values. Reading and checking them is in `wf_core.manifests.manifest`."""

from __future__ import annotations

from typing import Any

import attrs

from wf_core.manifests.conditions import Condition
from wf_core.manifests.effects import EffectRule
from wf_core.manifests.options import OptionDecl
from wf_core.values import EMPTY, FrozenMap, thaw


@attrs.frozen
class EvidenceDecl:
    """A counter that a feature must move to be called effective, and how far."""

    counter: str
    at_least: int | None = None
    equals: int | None = None
    equals_counter: str = ""

    @property
    def proves(self) -> bool:
        """Whether it asks for something to have happened; nothing at all satisfies every other comparison."""
        return self.at_least is not None and self.at_least >= 1

    def describe(self) -> str:
        """In words: ``skipped >= 1``."""
        if self.at_least is not None:
            return f"{self.counter} >= {self.at_least}"
        if self.equals is not None:
            return f"{self.counter} == {self.equals}"
        return f"{self.counter} == {self.equals_counter}"


@attrs.frozen
class Select:
    """The values of a selector that pick a feature: ``attention_backend`` = ``sdpa``, ``torch`` or ``auto``."""

    switch: str
    values: tuple[str, ...]


@attrs.frozen
class FeatureDecl:
    """One technique that a plugin offers. ``state`` is "" or a reason such as "unavailable: not implemented"."""

    name: str
    kind: str
    tier: str
    tolerance: str = ""
    experimental: bool = False
    summary: str = ""
    slot: str = ""
    seams: tuple[str, ...] = ()
    stage: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    effects: tuple[EffectRule, ...] = ()
    families: tuple[str, ...] = ("*",)
    evidence: tuple[EvidenceDecl, ...] = ()
    selects: tuple[Select, ...] = ()
    options: tuple[OptionDecl, ...] = ()
    conditions: tuple[Condition, ...] = ()
    state: str = ""

    def option(self, name: str) -> OptionDecl | None:
        """The declaration of an option, or None."""
        return next((option for option in self.options if option.name == name), None)

    def supports(self, family: str) -> bool:
        """Whether the feature lists the family, or all of them."""
        return "*" in self.families or family in self.families


@attrs.frozen
class SwitchDecl:
    """A request key and what it does to one feature.

    ``form`` is "flag" (true turns the feature on), "value" (any value but an off value turns it on and sets
    ``option``), "option" (sets ``option`` of a feature asked for otherwise), or "feature" (true, a number for the
    option named by ``shorthand``, or a mapping of options).
    """

    name: str
    feature: str
    form: str
    aliases: tuple[str, ...] = ()
    option: str = ""
    shorthand: str = ""
    off: tuple[Any, ...] = ()
    doc: str = ""


@attrs.frozen
class FactSource:
    """Where a family's fact comes from: a key of a component's config, with a default, or a constant."""

    component: str = ""
    key: str = ""
    default: Any = None
    constant: bool = False


@attrs.frozen
class FamilyDecl:
    """What a model-family plugin says about the classes that it knows.

    ``instead`` maps request keys of other families to this family's own key for the same thing.
    """

    name: str
    transformer_classes: FrozenMap
    seams: tuple[str, ...] = ()
    facts: FrozenMap = EMPTY
    conditions: tuple[Condition, ...] = ()
    instead: FrozenMap = EMPTY


@attrs.frozen
class ModelDecl:
    """A model that a model-source plugin brings. ``path`` is relative to the manifest's folder, "" for none."""

    name: str
    family: str
    path: str = ""
    summary: str = ""
    aliases: tuple[str, ...] = ()
    defaults: FrozenMap = EMPTY

    def defaults_dict(self) -> dict[str, Any]:
        """The defaults as a plain dict."""
        return dict(thaw(self.defaults))


@attrs.frozen
class Rule:
    """A row of the rule table: a pair of effects (``scope`` "inside" or "any"), an exclusive slot, or one effect
    with the condition over facts that it ``needs``.
    """

    code: str
    level: str
    reason: str
    pair: tuple[str, ...] = ()
    scope: str = "any"
    slot: str = ""
    effect: str = ""
    needs: Condition | None = None
