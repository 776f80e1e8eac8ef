"""What a manifest declares, as frozen values. Reading and checking them is in `wf_core.manifests.manifest`."""

from __future__ import annotations

from typing import Any

import attrs

from wf_core.manifests.conditions import Condition
from wf_core.manifests.effects import EffectRule
from wf_core.manifests.options import OptionDecl
from wf_core.values import EMPTY, FrozenMap, thaw


def reason_of(state: str) -> str:
    """The reason in a declared state such as "unavailable: not implemented"; "" where none is declared."""
    return state.partition(":")[2].strip()


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
class Rank:
    """A feature's place among those that answer to a shared name; lower is better. ``when`` limits it to some facts."""

    order: int
    when: Condition | None = None


@attrs.frozen
class Select:
    """The values of a selector that pick a feature: ``attention_backend`` = ``sdpa`` or ``torch``.

    ``groups`` are names that several features share, such as ``auto``: the best of them by ``ranks`` is chosen, the
    first rank whose condition is met. A value that ends in ``suffix`` picks the feature too and sets ``suffix_option``.
    """

    switch: str
    values: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    ranks: tuple[Rank, ...] = ()
    suffix: str = ""
    suffix_option: str = ""


@attrs.frozen
class FileDecl:
    """A file that an option names: facts that its safetensors header gives, as name -> (tensor, axis)."""

    option: str
    facts: tuple[tuple[str, str, int], ...] = ()


@attrs.frozen
class BoundDecl:
    """A bound that the tolerance states, as a number: of ``measure`` ("max-abs", "relative-l2": at most; "psnr": at
    least) between a run with the feature and one without, on devices of ``device`` in ``dtype``.
    """

    measure: str
    value: float
    device: str = "cpu"
    dtype: str = "float32"


@attrs.frozen
class GoalDecl:
    """A goal that may choose a feature: in which place among those of its stage, and by which request."""

    goal: str
    order: int = 100
    set: FrozenMap = EMPTY


@attrs.frozen
class FeatureDecl:
    """One technique that a plugin offers. ``state`` is "" or a reason such as "unavailable: not implemented";
    ``example`` is the smallest request that turns it on, ``trial`` one that turns it on for a model that nobody has
    calibrated or measured (the example where it is empty), ``goals`` those that may choose it, ``sweep`` the requests
    that ``wf compare --sweep`` tries. ``optional_seams`` are those of its seams that a family need not offer. ``inert``
    are conditions of which each, where it is met, means that the feature does nothing in that run.
    """

    name: str
    kind: str
    tier: str
    tolerance: str = ""
    experimental: bool = False
    summary: str = ""
    slot: str = ""
    seams: tuple[str, ...] = ()
    optional_seams: tuple[str, ...] = ()
    stage: str = ""
    before: tuple[str, ...] = ()
    after: tuple[str, ...] = ()
    effects: tuple[EffectRule, ...] = ()
    families: tuple[str, ...] = ("*",)
    evidence: tuple[EvidenceDecl, ...] = ()
    selects: tuple[Select, ...] = ()
    options: tuple[OptionDecl, ...] = ()
    conditions: tuple[Condition, ...] = ()
    inert: tuple[Condition, ...] = ()
    files: tuple[FileDecl, ...] = ()
    goals: tuple[GoalDecl, ...] = ()
    example: FrozenMap = EMPTY
    trial: FrozenMap = EMPTY
    sweep: tuple[FrozenMap, ...] = ()
    bounds: tuple[BoundDecl, ...] = ()
    state: str = ""

    @property
    def declared_only(self) -> str:
        """The reason for declaring a feature that cannot be activated; "" for one that can."""
        return reason_of(self.state)

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
    """Where a family's fact comes from: a key of a component's config, with a default, a constant, one value for each
    variant of the family, or several keys, ``parts``, whose values are a list.
    """

    component: str = ""
    key: str = ""
    default: Any = None
    constant: bool = False
    by_variant: FrozenMap = EMPTY
    parts: tuple[FactSource, ...] = ()


@attrs.frozen
class FamilyDecl:
    """What a model-family plugin says about the classes that it knows.

    ``instead`` maps request keys of other families to this family's own key for the same thing; ``state`` is "" or a
    reason such as "unavailable: not implemented"; ``trial`` names a function that gives a `wf_core.testing.Bench`.
    """

    name: str
    transformer_classes: FrozenMap
    seams: tuple[str, ...] = ()
    facts: FrozenMap = EMPTY
    conditions: tuple[Condition, ...] = ()
    instead: FrozenMap = EMPTY
    state: str = ""
    trial: str = ""

    @property
    def declared_only(self) -> str:
        """The reason for declaring a family whose models cannot be opened; "" for one whose models can."""
        return reason_of(self.state)


@attrs.frozen
class ProfileDecl:
    """What is published of a model, for judging requests without its files: the configs of its components as they
    stand in its checkpoint, each with its ``class``, and the numbers that its publisher runs.
    """

    pipeline: str
    configs: FrozenMap
    dtype: str = ""
    parameters: int = 0
    modules: tuple[str, ...] = ()
    official: FrozenMap = EMPTY


@attrs.frozen
class ModelDecl:
    """A model by name. Its files lie at ``path``, relative to the manifest's folder, or where the plugin's code knows;
    or only a ``profile`` of it is known; or it is ``remote``, served by somebody else's API.
    """

    name: str
    family: str
    path: str = ""
    summary: str = ""
    aliases: tuple[str, ...] = ()
    defaults: FrozenMap = EMPTY
    profile: ProfileDecl | None = None
    remote: bool = False

    def defaults_dict(self) -> dict[str, Any]:
        """The defaults as a plain dict."""
        return dict(thaw(self.defaults))


@attrs.frozen
class Rule:
    """A row of the rule table. It is about one of four things:

    a ``pair`` of effects of two features (``scope`` "inside": the second counts only at or inside the seam of the
    first); an exclusive ``slot``; an ``effect`` of one feature, which ``needs`` a condition over facts, or, with an
    ``aggregate`` ("product", "sum", "equal"), its numbers over all features, which ``needs`` compares; or, with
    ``when`` alone, the facts themselves. ``involves`` are further names for the refusal.
    """

    code: str
    level: str
    reason: str
    pair: tuple[str, ...] = ()
    scope: str = "any"
    slot: str = ""
    effect: str = ""
    aggregate: str = ""
    when: Condition | None = None
    needs: Condition | None = None
    involves: tuple[str, ...] = ()
