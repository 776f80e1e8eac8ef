"""What manifests must agree on, in themselves and with each other: request keys, codes, effects, before and after.

Each manifest that comes here has been read and checked alone. A fault is one line that says what is wrong, where, and
what to write instead. Only the plugins that say something wrong are faulty, not those that they say it about.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from wf_core import data
from wf_core.manifests.manifest import Manifest

MOST_FAULTS = 8


class _Step(NamedTuple):
    """One feature stands before another, as a feature of one plugin says."""

    first: str
    second: str
    says: str
    plugin: str


def own_fault(manifest: Manifest) -> str:
    """What is wrong with one manifest whatever else is installed; "" when nothing is."""
    faults = (_keys_of_the_core, _codes_of_the_core, _codes_of_two, _own_cycle)
    return _line(manifest, [line for fault in faults for line in fault(manifest)])


def faults_together(manifests: Mapping[str, Manifest]) -> dict[str, str]:
    """The plugins, by name, that contradict each other, with the reason and how to get out of it.

    The result does not depend on the order of ``manifests``, and every plugin that takes part in a contradiction is in
    it: none of them is right until the others are blocked.
    """
    found: dict[str, list[str]] = {}
    for name, fault in (*_shared_codes(manifests), *_shared_words(manifests), *_cycles(manifests)):
        found.setdefault(name, []).append(fault)
    return {name: _line(manifests[name], faults) for name, faults in found.items()}


def _line(manifest: Manifest, faults: Sequence[str]) -> str:
    more = [f"and {len(faults) - MOST_FAULTS} more"] if len(faults) > MOST_FAULTS else []
    return f"{manifest.path}: {'; '.join([*faults[:MOST_FAULTS], *more])}" if faults else ""


# --- request keys ------------------------------------------------------------------------------------------------


def _keys_of_the_core(manifest: Manifest) -> Iterator[str]:
    """A request key of the host would never reach the plugin's switch."""
    table = data.table("selectors")
    core = {row["name"] for row in (*table["selector"], *table["host"])}
    for switch in manifest.switches:
        for name in (switch.name, *switch.aliases):
            if name in core:
                hint = (
                    "answer to it with select"
                    if name in {row["name"] for row in table["selector"]}
                    else "rename it"
                )
                yield f"switch {switch.name!r}: {name} is a request key of the host; {hint}"


# --- codes -------------------------------------------------------------------------------------------------------


def _codes_of_the_core(manifest: Manifest) -> Iterator[str]:
    core = {row["code"] for row in (*data.table("rules")["rule"], *data.table("codes")["code"])}
    for code, where in {**_condition_codes(manifest), **_rule_codes(manifest)}.items():
        if code in core:
            own = f"{manifest.name.upper()}-1"
            yield f"{where}: {code} is a code of the host; choose one of your own, such as {own}"


def _codes_of_two(manifest: Manifest) -> Iterator[str]:
    """Conditions may share a code; a rule has its own."""
    conditions = _condition_codes(manifest)
    for code, where in _rule_codes(manifest).items():
        if code in conditions:
            yield f"{where}: {conditions[code]} has the same code; give one of them another"


def _shared_codes(manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    codes = {name: {*_rule_codes(m), *_condition_codes(m)} for name, m in manifests.items()}
    for name, rival, shared in _overlaps(codes):
        what = f"{rival} has the same {'code' if len(shared) == 1 else 'codes'} {', '.join(shared)}"
        yield name, f"{what}, and one code stands for one reason: choose another, or {_block(name, rival)}"


def _rule_codes(manifest: Manifest) -> dict[str, str]:
    """The code of each rule, with the place that gives it."""
    return {rule.code: f"rule {rule.code}" for rule in manifest.rules}


def _condition_codes(manifest: Manifest) -> dict[str, str]:
    """The codes of the conditions, which may share one, each with the first place that gives it."""
    family = manifest.family.conditions if manifest.family is not None else ()
    places = [("condition", "the family", family)]
    places += [("condition", f"feature {f.name!r}", f.conditions) for f in manifest.features]
    places += [("inert", f"feature {f.name!r}", f.inert) for f in manifest.features]
    found: dict[str, str] = {}
    for what, place, conditions in places:
        for number, condition in enumerate(conditions, 1):
            if condition.code:
                found.setdefault(condition.code, f"{what} number {number} of {place}")
    return found


# --- words for effects -------------------------------------------------------------------------------------------


def _shared_words(manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    """Two plugins may introduce one word, so that a rule of one is about both; then it carries as many numbers."""
    words = {name: {word.name: word for word in m.effects} for name, m in manifests.items()}
    for name, rival, shared in _overlaps({name: set(own) for name, own in words.items()}):
        for word in shared:
            mine, other = words[name][word].numbers, words[rival][word].numbers
            if mine != other:
                what = f"effect {word!r} has numbers = {mine}, and {other} in {rival}"
                yield name, f"{what}: agree on one, choose another word, or {_block(name, rival)}"


# --- before and after --------------------------------------------------------------------------------------------


def _own_cycle(manifest: Manifest) -> Iterator[str]:
    cycle = _cycle_of("", _without_ends(_steps("", manifest)))
    if cycle:
        yield f"{_spelled(cycle)}; take one of these out"


def _cycles(manifests: Mapping[str, Manifest]) -> Iterator[tuple[str, str]]:
    """For each plugin that has a part in a cycle over installed features, one cycle that it has a part in."""
    there = {feature.name for manifest in manifests.values() for feature in manifest.features}
    steps = [step for name in sorted(manifests) for step in _steps(name, manifests[name])]
    onward = _without_ends(step for step in steps if {step.first, step.second} <= there)
    for name in sorted({step.plugin for after in onward.values() for step in after}):
        cycle = _cycle_of(name, onward)
        if cycle:
            blocks = " or ".join(f"WF_BLOCK={word}" for word in sorted({step.plugin for step in cycle}))
            yield name, f"{_spelled(cycle)}; take one of these out, or block one of the plugins with {blocks}"


def _steps(plugin: str, manifest: Manifest) -> Iterator[_Step]:
    for feature in manifest.features:
        says = f"{feature.name} of {plugin}" if plugin else feature.name
        yield from (_Step(feature.name, name, f"before of {says}", plugin) for name in sorted(feature.before))
        yield from (_Step(name, feature.name, f"after of {says}", plugin) for name in sorted(feature.after))


def _cycle_of(plugin: str, onward: Mapping[str, Sequence[_Step]]) -> tuple[_Step, ...]:
    """A shortest cycle that begins with a step of that plugin, () when none does."""
    starts = (step for after in onward.values() for step in after if step.plugin == plugin)
    return next((way for start in starts if (way := _shortest(start, onward))), ())


def _without_ends(steps: Iterable[_Step]) -> dict[str, list[_Step]]:
    """The steps by where they start, without those that lead nowhere: nearly always none is left."""
    left = list(steps)
    while True:
        firsts = {step.first for step in left}
        seconds = {step.second for step in left}
        kept = [step for step in left if step.second in firsts and step.first in seconds]
        if len(kept) == len(left):
            break
        left = kept
    onward: dict[str, list[_Step]] = {}
    for step in left:
        onward.setdefault(step.first, []).append(step)
    return onward


def _shortest(start: _Step, onward: Mapping[str, Sequence[_Step]]) -> tuple[_Step, ...]:
    """The shortest way from a step back to where it starts, () when there is none."""
    came: dict[str, _Step] = {start.second: start}
    waiting = deque([start.second])
    while waiting and start.first not in came:
        for step in onward.get(waiting.popleft(), ()):
            if step.second not in came:
                came[step.second] = step
                waiting.append(step.second)
    if start.first not in came:
        return ()
    way = [came[start.first]]
    while way[-1] is not start:
        way.append(came[way[-1].first])
    return tuple(reversed(way))


def _spelled(cycle: Sequence[_Step]) -> str:
    order = " before ".join([*(step.first for step in cycle), cycle[-1].second])
    said = ", ".join(dict.fromkeys(step.says for step in cycle))
    return f"no order is right, because features are to stand {order} ({said})"


# --- words -------------------------------------------------------------------------------------------------------


def _overlaps(names: Mapping[str, set[str]]) -> Iterator[tuple[str, str, list[str]]]:
    """Every plugin with each other one that uses some of the same names, and these names."""
    owners: dict[str, list[str]] = {}
    for plugin in sorted(names):
        for name in names[plugin]:
            owners.setdefault(name, []).append(plugin)
    rivals = {
        pair for same in owners.values() if len(same) > 1 for pair in ((a, b) for a in same for b in same)
    }
    for one, other in sorted(rivals):
        if one != other:
            yield one, other, sorted(names[one] & names[other])


def _block(name: str, rival: str) -> str:
    first, second = sorted((name, rival))
    return f"block one of the plugins with WF_BLOCK={first} or WF_BLOCK={second}"
