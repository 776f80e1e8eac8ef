"""Reading ``[[feature]]`` and ``[[switch]]`` of a manifest."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from wf_core.manifests.conditions import BadCondition, Condition
from wf_core.manifests.declarations import (
    BoundDecl,
    EvidenceDecl,
    FeatureDecl,
    FileDecl,
    GoalDecl,
    Rank,
    Select,
    SwitchDecl,
)
from wf_core.manifests.effects import BadEffect, Effect, EffectRule, EffectWord
from wf_core.manifests.options import LISTS, TYPES, BadValue, DefaultWith, OptionDecl
from wf_core.manifests.stages import STAGES, default_stage
from wf_core.manifests.toml_reader import Table
from wf_core.manifests.vocabulary import GOALS, KINDS, MEASURES, MODEL_KINDS, SEAMS, TIERS
from wf_core.names import did_you_mean, repeated, switch_key
from wf_core.values import FrozenMap, freeze, show

FORMS = ("flag", "value", "option", "feature")
TableKeys = Mapping[str, frozenset[Any]]


def read_feature(row: Table, kind: str, words: Mapping[str, EffectWord], tables: TableKeys) -> FeatureDecl:
    """One ``[[feature]]``; its kind is the plugin's unless it names its own."""
    kind = row.one_of("kind", KINDS, kind)
    options = tuple(_option(option, words) for option in row.tables("option"))
    feature = FeatureDecl(
        name=row.text("name"),
        kind=kind,
        tier=row.one_of("tier", TIERS),
        tolerance=row.text("tolerance", ""),
        experimental=row.flag("experimental", False),
        summary=row.text("summary", ""),
        slot=row.text("slot", ""),
        seams=_seams(row),
        optional_seams=_optional_seams(row),
        stage=row.one_of("stage", STAGES, default_stage(kind)),
        before=row.texts("before"),
        after=row.texts("after"),
        effects=tuple(_effect(row, item, words, options, tables) for item in row.items("effects")),
        families=_families(row),
        evidence=tuple(_evidence(item) for item in row.tables("evidence")),
        selects=tuple(_select(item, options, tables) for item in row.tables("select")),
        options=options,
        conditions=read_conditions(row, options, tables),
        inert=read_conditions(row, options, tables, "inert"),
        files=tuple(_file(item, options) for item in row.tables("file")),
        goals=_goals(row),
        example=_request(row.mapping("example")),
        trial=_request(row.mapping("trial")),
        sweep=_sweep(row),
        bounds=tuple(_bound(item) for item in row.tables("bound")),
        state=read_state(row),
    )
    twice = repeated(_option_names(options))
    if twice:
        row.fail(f"option {twice[0]!r} is declared twice")
    for name in (name for option in options for beside in option.default_with for name in beside.unless):
        if name not in _option_names(options):
            row.fail(f"default_with stands back for an option {name!r} that is not declared")
    if any(not goal.set for goal in feature.goals) and not feature.example:
        row.fail("a goal adds the feature's example, or a set of its own, and there is neither")
    if kind not in MODEL_KINDS and not any(item.proves for item in feature.evidence):
        row.fail(
            "needs evidence: at least one counter with at_least = 1 or more, or no run can prove that it worked"
        )
    if feature.tier != "exact" and not feature.tolerance.strip():
        row.fail(f"tier {feature.tier} needs a tolerance: one sentence with the bound that was measured")
    row.done()
    return feature


def read_switch(row: Table, features: tuple[FeatureDecl, ...]) -> SwitchDecl:
    """One ``[[switch]]``, which belongs to a feature of the same manifest."""
    names = [feature.name for feature in features]
    switch = SwitchDecl(
        name=switch_key(row.text("name")),
        feature=row.text("feature"),
        form=row.one_of("form", FORMS),
        aliases=tuple(switch_key(alias) for alias in row.texts("aliases")),
        option=row.text("option", ""),
        shorthand=row.text("shorthand", ""),
        off=_off(row),
        doc=row.text("doc", ""),
    )
    feature = next((feature for feature in features if feature.name == switch.feature), None)
    if feature is None:
        row.fail(f"no feature {switch.feature!r} in this manifest{did_you_mean(switch.feature, names)}")
    if switch.form in ("value", "option") and not switch.option:
        row.fail(f"form {switch.form} needs the option that it sets")
    for name in (switch.option, switch.shorthand):
        if name and feature.option(name) is None:
            row.fail(f"feature {feature.name!r} has no option {name!r}")
    row.done()
    return switch


def read_conditions(
    row: Table, options: tuple[OptionDecl, ...], tables: TableKeys, key: str = "condition"
) -> tuple[Condition, ...]:
    """The ``[[condition]]`` rows of a feature or a family, or those of another ``key``, each with its reason."""
    rows = row.raw(key, [])
    if not isinstance(rows, list):
        row.fail(f"{key} must be an array of tables, [[feature.{key}]]")
    return tuple(
        read_condition(row, item, f"{key} number {index + 1}", options, tables)
        for index, item in enumerate(rows)
    )


def read_condition(
    row: Table, item: Any, what: str, options: tuple[OptionDecl, ...], tables: TableKeys, *, top: bool = True
) -> Condition:
    """One condition that may look at these options and tables; at the ``top`` it carries a reason."""
    try:
        condition = Condition.parse(item, top=top)
    except BadCondition as error:
        row.fail(f"{what}: {error}")
    names = _option_names(options)
    for ref in condition.refs():
        if ref.kind == "option" and ref.name not in names:
            row.fail(
                f"{what} looks at an option {ref.name!r} that is not declared{did_you_mean(ref.name, names)}"
            )
    numbers = [option.name for option in options if option.type in ("int", "float")]
    for ref in (ref for each in condition.sums() for ref in each.refs()):
        if ref.kind == "option" and ref.name not in numbers:
            row.fail(f"{what} adds the option {ref.name!r}, which is no number")
    for name in condition.table_names():
        if name not in tables:
            row.fail(f"{what} looks at a table {name!r} that is not declared{did_you_mean(name, tables)}")
    return condition


def _effect(
    row: Table, item: Any, words: Mapping[str, EffectWord], options: tuple[OptionDecl, ...], tables: TableKeys
) -> EffectRule:
    when = None
    if isinstance(item, Mapping):
        if set(item) - {"effect", "when"} or "effect" not in item:
            row.fail("an effect is text, or a table with effect and when")
        if "when" in item:
            when = read_condition(
                row, item["when"], f"when of {item['effect']!r}", options, tables, top=False
            )
        item = item["effect"]
    if not isinstance(item, str):
        row.fail("an effect is text, or a table with effect and when")
    try:
        effect = Effect.parse(item, words)
    except BadEffect as error:
        row.fail(str(error))
    declared = _option_names(options)
    for number in effect.numbers:
        if isinstance(number, str) and number not in declared:
            row.fail(f"effect {item!r} takes its number from an option {number!r} that is not declared")
    return EffectRule(effect, when)


def _option(row: Table, words: Mapping[str, EffectWord]) -> OptionDecl:
    option = OptionDecl(
        name=row.text("name"),
        type=row.one_of("type", TYPES),
        doc=row.text("doc", ""),
        default=freeze(row.raw("default")),
        choices=row.items("choices"),
        spellings=FrozenMap(row.mapping("spellings")),
        min=row.number_or_none("min"),
        max=row.number_or_none("max"),
        above=row.number_or_none("above"),
        length=row.whole_or_none("length", 1),
        default_with=_default_with(row, words),
        sets=row.text("sets", ""),
    )
    if option.length is not None and option.type not in LISTS:
        row.fail(f"length is for lists ({', '.join(LISTS)}), not for type {option.type}")
    if not all(isinstance(choice, str | int | float) for choice in option.choices):
        row.fail("choices are texts, numbers, true or false")
    if (option.type == "choice") != bool(option.choices):
        row.fail("type choice and a list of choices go together")
    if any(choice not in option.choices for choice in option.spellings.values()):
        row.fail(f"spellings map texts to choices, got {show(option.spellings)}")
    if {spelling.lower() for spelling in option.spellings} & {show(c).lower() for c in option.choices}:
        row.fail("a spelling is another way to write a choice, and here it is a choice itself")
    low = option.min if option.above is None else option.above
    if low is not None and option.max is not None and (low > option.max or option.above == option.max):
        row.fail(f"no number is in its range {option.describe_range()}")
    try:
        for default in (option.default, *(beside.value for beside in option.default_with)):
            option.convert(default, option.name)
    except BadValue as error:
        row.fail(f"its default does not fit: {error.problem}")
    row.done()
    return option


def _default_with(row: Table, words: Mapping[str, EffectWord]) -> tuple[DefaultWith, ...]:
    """Defaults beside a feature with some effect: a list of ``{effect, value, unless}``."""
    found = []
    for item in row.items("default_with"):
        fits = isinstance(item, Mapping) and {"effect", "value"} <= set(item) <= {"effect", "value", "unless"}
        if not fits or not isinstance(item.get("unless", ()), tuple):
            row.fail(f"default_with is a list of {{effect, value, unless}}, got {show(item)}")
        if item["effect"] not in words:
            hint = did_you_mean(str(item["effect"]), words)
            row.fail(f"default_with names an unknown effect {item['effect']!r}{hint}")
        found.append(DefaultWith(str(item["effect"]), item["value"], tuple(map(str, item.get("unless", ())))))
    return tuple(found)


def _evidence(row: Table) -> EvidenceDecl:
    evidence = EvidenceDecl(
        counter=row.text("counter"),
        at_least=row.whole_or_none("at_least", 0),
        equals=row.whole_or_none("equals", 0),
        equals_counter=row.text("equals_counter", ""),
    )
    given = [evidence.at_least is not None, evidence.equals is not None, bool(evidence.equals_counter)]
    if sum(given) > 1:
        row.fail("evidence takes one of at_least, equals and equals_counter")
    row.done()
    return evidence if any(given) else EvidenceDecl(evidence.counter, at_least=1)


def _select(row: Table, options: tuple[OptionDecl, ...], tables: TableKeys) -> Select:
    select = Select(
        switch=switch_key(row.text("switch")),
        values=row.texts("values"),
        groups=row.texts("groups"),
        ranks=_ranks(row, options, tables),
        suffix=row.text("suffix", "").lower(),
        suffix_option=row.text("suffix_option", ""),
    )
    if not (select.values or select.groups):
        row.fail("select needs at least one value")
    if select.ranks and not select.groups:
        row.fail("order is a place among the features of a group, and no groups are named")
    if bool(select.suffix) != bool(select.suffix_option):
        row.fail("suffix and suffix_option go together")
    if select.suffix_option and select.suffix_option not in _option_names(options):
        row.fail(f"suffix_option {select.suffix_option!r} is no option of the feature")
    row.done()
    return select


def _ranks(row: Table, options: tuple[OptionDecl, ...], tables: TableKeys) -> tuple[Rank, ...]:
    """``order = 10``, or a list of ``{order = 10, when = {...}}`` of which the first that is met counts."""
    raw = row.raw("order", ())
    items = raw if isinstance(raw, list | tuple) else [{"order": raw}]
    found = []
    for item in items:
        order = item.get("order") if isinstance(item, Mapping) and not set(item) - {"order", "when"} else None
        if isinstance(order, bool) or not isinstance(order, int):
            row.fail(f"order is a whole number, or a list of {{order, when}}, got {show(raw)}")
        when = item.get("when")
        found.append(
            Rank(
                order,
                read_condition(row, when, "when of order", options, tables, top=False) if when else None,
            )
        )
    return tuple(found)


def _file(row: Table, options: tuple[OptionDecl, ...]) -> FileDecl:
    facts = []
    for name, place in row.mapping("facts").items():
        fits = isinstance(place, Mapping) and set(place) == {"tensor", "axis"}
        if not (fits and isinstance(place["tensor"], str) and type(place["axis"]) is int):
            row.fail(f"{name} takes {{tensor, axis}}, got {show(place)}")
        facts.append((name, place["tensor"], place["axis"]))
    declared = FileDecl(row.text("option"), tuple(facts))
    if not any(option.name == declared.option and option.type in ("path", "str") for option in options):
        row.fail(f"{declared.option!r} is no option of type path or str")
    row.done()
    return declared


def _request(typed: Mapping[str, Any]) -> FrozenMap:
    return FrozenMap({switch_key(name): value for name, value in typed.items()})


def _sweep(row: Table) -> tuple[FrozenMap, ...]:
    """``sweep = [{ feature_cache = "x" }, ...]``: requests, each written like the example."""
    items = row.items("sweep")
    if not all(isinstance(item, Mapping) and item for item in items):
        row.fail(f"sweep is a list of requests, each written like the example, got {show(items)}")
    return tuple(_request(item) for item in items)


def _bound(row: Table) -> BoundDecl:
    value = row.number_or_none("value")
    if value is None:
        row.fail("a bound needs its value")
    bound = BoundDecl(
        measure=row.one_of("measure", MEASURES),
        value=float(value),
        device=row.text("device", "cpu"),
        dtype=row.text("dtype", "float32"),
    )
    row.done()
    return bound


def _goals(row: Table) -> tuple[GoalDecl, ...]:
    """``goals = ["exact"]``, or rows ``{goal, order, set}``; ``set`` is the request to add, else the example."""
    return tuple(_goal(row, item) for item in row.items("goals"))


def _goal(row: Table, item: Any) -> GoalDecl:
    fields = {"goal": item} if isinstance(item, str) else item
    if not isinstance(fields, Mapping) or set(fields) - {"goal", "order", "set"} or "goal" not in fields:
        row.fail(f"goals is a list of names, or of {{goal, order, set}}, got {show(item)}")
    goal, order, added = fields["goal"], fields.get("order", 100), fields.get("set", {})
    if goal not in GOALS:
        row.fail(f"unknown goal {show(goal)!r}{did_you_mean(show(goal), GOALS)} ({', '.join(GOALS)})")
    if type(order) is not int or not isinstance(added, Mapping):
        row.fail(f"a goal's order is a whole number and its set a table, got {show(item)}")
    return GoalDecl(str(goal), order, FrozenMap({switch_key(key): value for key, value in added.items()}))


def read_state(row: Table) -> str:
    """What is declared and cannot be used says why; there is no other state that it could be in."""
    state = row.text("state", "")
    word, _, reason = state.partition(":")
    if state and not (word.strip() == "unavailable" and reason.strip()):
        row.fail(f'state must be "unavailable: REASON", got {state!r}')
    return state


def _option_names(options: tuple[OptionDecl, ...]) -> list[str]:
    return [option.name for option in options]


def _seams(row: Table) -> tuple[str, ...]:
    seams = row.texts("seams")
    for seam in seams:
        if seam not in SEAMS:
            row.fail(f"unknown seam {seam!r}{did_you_mean(seam, SEAMS)}")
    return seams


def _optional_seams(row: Table) -> tuple[str, ...]:
    optional, seams = row.texts("optional_seams"), row.texts("seams")
    for seam in optional:
        if seam not in seams:
            row.fail(f"optional_seams names {seam!r}, which is not among its seams")
    if len(set(optional)) != len(optional):
        row.fail("optional_seams names a seam twice")
    if optional and set(optional) == set(seams):
        row.fail("optional_seams names all of its seams: a feature needs one to stand at")
    return optional


def _families(row: Table) -> tuple[str, ...]:
    families = row.texts("families", ["*"])
    if not families:
        row.fail('families must name at least one family, or "*"')
    return families


def _off(row: Table) -> tuple[Any, ...]:
    off = row.raw("off", ())
    values = tuple(off) if isinstance(off, list | tuple) else (off,)
    for value in values:
        if not isinstance(value, str | int | float):
            row.fail(f"off takes texts, numbers, true or false, got {show(value)}")
    return values
