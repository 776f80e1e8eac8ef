"""What could be changed about a refused request: changes that were tried, and the nearest legal request.

Nothing here is recommended on faith: every change is made, and the changed request is decided like any other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Set
from itertools import combinations
from math import comb
from typing import Any

import attrs

from wf_core.names import switch_key
from wf_core.resolving.deciding import Decision
from wf_core.resolving.plan import Change, Fix, Violation
from wf_core.values import canonical_json

Decide = Callable[[Mapping[str, Any]], Decision]
Canonical = Callable[[str], str]
"""A request key's own name where it is an alias."""
MOST_TRIED = 40
MOST_REASONS = 100_000
"""Over all that is decided for one advice; then the advice is to leave out every key. A usual one sees a hundred."""
MOST_FIXES = 8
IGNORED = "WF-R005"
EXACT_UP_TO = 4
MOST_SETS = 20_000
"""A smallest set of keys to take out is looked for up to this size, while there are no more sets of that size than
this; beyond it the most frequent key goes first."""


@attrs.frozen
class Advice:
    """Fixes, those that suffice alone first, and the change after which the request is legal (None if nothing is)."""

    fixes: tuple[Fix, ...] = ()
    nearest: Change | None = None


@attrs.frozen
class Reason:
    """Keys of which one has to go, unless some of the keys ``without`` which that is so stays."""

    keys: frozenset[str]
    without: frozenset[str] = frozenset()

    def answered(self, out: Set[str]) -> bool:
        """Whether taking these keys out leaves nothing of it."""
        return bool(self.keys & out) or bool(self.without - out)


def advise(
    request: Mapping[str, Any], violations: Sequence[Violation], decide: Decide, canonical: Canonical
) -> Advice:
    """Tries changes of a request that these violations refuse. Without any key there is nothing to change."""
    if not decide({}).legal:
        return Advice()
    try:
        return _Adviser(request, violations, _remembered(decide), canonical).advice()
    except _Enough:
        return Advice((), Change(unset=tuple(sorted(map(str, request)))))


class _Enough(Exception):
    """So much has been decided that the answer would be long in coming."""


def _remembered(decide: Decide) -> Decide:
    """The same, each request decided once."""
    known: dict[str, Decision] = {}
    reasons = 0

    def remembered(request: Mapping[str, Any]) -> Decision:
        nonlocal reasons
        text = canonical_json(request)
        if text not in known:
            if reasons > MOST_REASONS:
                raise _Enough
            known[text] = decide(request)
            reasons += len(known[text].violations)
        return known[text]

    return remembered


class _Adviser:
    """The keys of one request, and what taking them out or changing them does."""

    def __init__(
        self,
        request: Mapping[str, Any],
        violations: Sequence[Violation],
        decide: Decide,
        canonical: Canonical,
    ) -> None:
        self.request = {
            str(key): value for key, value in sorted(request.items(), key=lambda item: str(item[0]))
        }
        self.violations = tuple(violations)
        self.decide = decide
        self.canonical = canonical

    def advice(self) -> Advice:
        tried = [(change, self.decide(change.applied(self.request))) for change in self._changes()]
        single = [Fix(change, True) for change, decision in tried if decision.legal]
        partial = [
            Fix(change, False)
            for change, decision in tried
            if not decision.legal and _better(decision.violations, self.violations)
        ]
        if single:
            nearest = self._smallest([fix.change for fix in single])
        else:
            nearest = self._nearest([fix.change for fix in partial])
        return Advice((*single, *partial)[:MOST_FIXES], nearest)

    def _smallest(self, single: Sequence[Change]) -> Change:
        """A repair, else the fewest keys taken out: a key that takes its options along may cost more than they do."""
        best = min(single, key=lambda c: 0 if c.set else len(c.unset))
        if best.set or len(best.unset) < 3:
            return best
        out = self._taken_out(self.request)
        return best if len(out) >= len(best.unset) else Change(unset=out)

    # --- single changes ----------------------------------------------------------------------------------------

    def _changes(self) -> tuple[Change, ...]:
        """Repairs first, then taking out each key that clashes, with what depends on it."""
        repairs = [change for violation in self.violations for change in violation.repairs]
        blamed = dict.fromkeys(key for violation in self.violations for key in self._keys_of(violation))
        removals = [change for key in [*blamed][:MOST_TRIED] for change in self._removals(key)]
        changes = [self._spelled(change) for change in (*repairs, *removals)]
        return tuple(dict.fromkeys(change for change in changes if change.set or change.unset))[:MOST_TRIED]

    def _keys_of(self, violation: Violation) -> list[str]:
        """The request's own keys, as they are spelled there, that a violation names; all keys where it names none."""
        return self._named(violation) or list(self.request)

    def _named(self, violation: Violation) -> list[str]:
        named = {switch_key(name) for name in violation.involves}
        return [key for key in self.request if {self._name(key), switch_key(key)} & named]

    def _name(self, key: str) -> str:
        """The canonical name of a key: no alias, no options below it."""
        return self.canonical(switch_key(key).partition(".")[0])

    def _removals(self, key: str) -> Iterator[Change]:
        """The key alone, and the key with the options that would then be ignored."""
        alone = Change(unset=(key,))
        yield alone
        left = self.decide(alone.applied(self.request))
        ignored = [
            other
            for violation in left.violations
            if violation.code == IGNORED and violation not in self.violations
            for other in self.request
            if switch_key(other) == violation.involves[0]
        ]
        if ignored:
            yield Change(unset=tuple(dict.fromkeys((key, *ignored))))

    def _spelled(self, change: Change) -> Change:
        """The same change with every key that it takes out as the request spells it."""
        left = change.applied(self.request)
        return Change(change.set, tuple(key for key in self.request if key not in left))

    # --- the nearest legal request -----------------------------------------------------------------------------

    def _nearest(self, partial: Iterable[Change]) -> Change:
        """Repairs that help, then as few keys taken out as hit every reason; last, what can be put back is put back."""
        current, found = dict(self.request), self.violations
        for repair in partial:
            if repair.set:
                changed = repair.applied(current)
                decision = self.decide(changed)
                if _better(decision.violations, found) or decision.legal:
                    current, found = changed, decision.violations
                if decision.legal:
                    return self._difference(current)
        out = self._taken_out(current)
        return self._difference({key: value for key, value in current.items() if key not in out})

    def _difference(self, changed: Mapping[str, Any]) -> Change:
        """The change that makes the request into another one."""
        given = [(k, v) for k, v in changed.items() if k not in self.request or v is not self.request[k]]
        return Change(tuple(given), tuple(key for key in self.request if key not in changed))

    def _taken_out(self, request: dict[str, Any]) -> tuple[str, ...]:
        """Keys without which the rest is legal: a smallest set that hits every reason found, checked by deciding."""
        reasons: list[Reason] = []
        whole = _Adviser(request, (), self.decide, self.canonical)
        while True:
            out = _hitting(reasons, tuple(request))
            left = {key: value for key, value in request.items() if key not in out}
            decision = self.decide(left)
            if decision.legal:
                return self._put_back(request, out)
            own = _Adviser(left, decision.violations, self.decide, self.canonical)
            for violation in decision.violations:
                asked = {*whole._named(violation)} & {*out} if violation.code == IGNORED else set()
                reasons.append(Reason(frozenset(own._keys_of(violation)), frozenset(asked)))

    def _put_back(self, request: dict[str, Any], out: tuple[str, ...]) -> tuple[str, ...]:
        gone = list(out)
        for key in out:
            kept = {name: value for name, value in request.items() if name not in gone or name == key}
            if len(gone) > 1 and self.decide(kept).legal:
                gone.remove(key)
        return tuple(gone)


def _better(found: Sequence[Violation], before: Sequence[Violation]) -> bool:
    """Whether some reasons are gone and none has come."""
    return {(v.code, v.involves) for v in found} < {(v.code, v.involves) for v in before}


def _hitting(reasons: Sequence[Reason], keys: Sequence[str]) -> tuple[str, ...]:
    """A smallest set of keys with one from every reason; among equals the one whose keys stand last."""
    for size in range(EXACT_UP_TO + 1):
        if comb(len(keys), size) > MOST_SETS:
            break
        for chosen in combinations(reversed(keys), size):
            if all(reason.answered({*chosen}) for reason in reasons):
                return tuple(sorted(chosen))
    chosen_keys: list[str] = []
    left = list(reasons)
    while left:
        most = max(keys, key=lambda key: (sum(key in reason.keys for reason in left), key))
        chosen_keys.append(most)
        left = [reason for reason in left if most not in reason.keys]
    return tuple(sorted(chosen_keys))
