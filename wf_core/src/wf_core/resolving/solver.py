"""Deciding clauses: whether they can all hold, the best way in which they hold, and why they cannot.

A *literal* is a whole number: 3 says that variable 3 is true, -3 that it is false. A *clause* is a tuple of literals
of which at least one must hold. Everything here is deterministic: the same clauses in any order give the same answer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence

from wf_core.errors import BadInput

Literal = int
Clause = tuple[Literal, ...]
Model = frozenset[Literal]
Decided = tuple[int, list[int], bool]
"""The place of a decision in the order, the variables that it assigned, and whether true is left to try."""
Lazy = Callable[[Model], Clause | None]
"""Looks at a model and gives a clause that it breaks, or None: for constraints that are too many to write down."""
MOST_STEPS = 20_000_000
LAZY_STEPS = 20_000
"""How many literals one solver looks at, and for how many a model counts that ``lazy`` takes back: some seconds."""
SWITCH = 1 << 60
"""Above every variable: a clause with the literal -(SWITCH + i) counts only where that switch is assumed."""


class TooManyChoices(BadInput):
    """A search that would not end in time: only manifests that are written for it make one."""

    def __init__(self) -> None:
        super().__init__(
            "the request leaves too many choices to go through; name the features that are meant"
        )


def satisfiable(
    clauses: Iterable[Clause], assumed: Iterable[Literal] = (), lazy: Lazy | None = None
) -> Model | None:
    """One assignment of every variable under which all clauses hold, or None. Variables are false where possible."""
    return _Solver(clauses, lazy).model(tuple(assumed))


def prefer(
    clauses: Iterable[Clause],
    order: Sequence[Literal],
    assumed: Iterable[Literal] = (),
    lazy: Lazy | None = None,
) -> Model | None:
    """The assignment that holds the literals of ``order`` where possible, an earlier one before all later ones."""
    solver, held = _Solver(clauses, lazy), list(assumed)
    best = solver.model(held)
    if best is None:
        return None
    for literal in order:
        found = best if literal in best else solver.model([*held, literal])
        if found is not None:
            best = found
            held.append(literal)
    return best


def explain(
    hard: Sequence[Clause], soft: Sequence[Clause], lazy: Lazy | None = None
) -> tuple[int, ...] | None:
    """The indices of a minimal set of ``soft`` clauses that cannot hold together beside ``hard``; None if all can.

    QuickXplain (Junker, AAAI 2004): of several minimal sets the one whose members stand earliest is found. Empty when
    ``hard`` alone cannot hold.
    """

    switched = ((*clause, -(SWITCH + index)) for index, clause in enumerate(soft))
    solver = _Solver((*hard, *switched), lazy)

    def consistent(chosen: Sequence[int]) -> bool:
        on = {*chosen}
        switches = [SWITCH + index if index in on else -(SWITCH + index) for index in range(len(soft))]
        return solver.model(switches) is not None

    def minimal(background: list[int], changed: bool, candidates: list[int]) -> list[int]:
        if changed and not consistent(background):
            return []
        if len(candidates) == 1:
            return candidates
        half = len(candidates) // 2
        first, second = candidates[:half], candidates[half:]
        needed = minimal([*background, *first], bool(first), second)
        return [*minimal([*background, *needed], bool(needed), first), *needed]

    everything = list(range(len(soft)))
    if consistent(everything):
        return None
    return tuple(sorted(minimal([], True, everything))) if everything and consistent([]) else ()


def conflicts(
    hard: Sequence[Clause],
    soft: Sequence[Clause],
    removable: Callable[[int], bool],
    limit: int = 5,
    lazy: Lazy | None = None,
) -> tuple[tuple[int, ...], ...]:
    """Up to ``limit`` minimal conflicts that share no clause of which ``removable`` says yes."""
    left = list(range(len(soft)))
    found: list[tuple[int, ...]] = []
    while len(found) < limit:
        conflict = explain(hard, [soft[index] for index in left], lazy)
        if not conflict:
            break
        indices = tuple(left[position] for position in conflict)
        found.append(indices)
        taken = {index for index in indices if removable(index)}
        if not taken:
            break
        left = [index for index in left if index not in taken]
    return tuple(found)


class _Solver:
    """Depth-first search with unit propagation (DPLL), false before true, lowest variable first.

    Clauses that ``lazy`` gave are kept for the next question.
    """

    def __init__(self, clauses: Iterable[Clause], lazy: Lazy | None = None) -> None:
        self.lazy = lazy
        self.steps = 0
        self.clauses: list[Clause] = []
        self.occurs: dict[Literal, list[int]] = defaultdict(list)
        self.units: list[Literal] = []
        self.variables: set[int] = set()
        self.empty = False
        for clause in clauses:
            self.add(clause)

    def add(self, clause: Clause) -> None:
        literals = tuple(sorted(set(clause), key=abs))
        self.variables.update(map(abs, literals))
        if any(-literal in literals for literal in literals):
            return
        self.empty = self.empty or not literals
        if len(literals) == 1:
            self.units.append(literals[0])
        for literal in literals:
            self.occurs[literal].append(len(self.clauses))
        self.clauses.append(literals)

    def model(self, assumed: Sequence[Literal]) -> Model | None:
        """The first assignment that breaks nothing, ``lazy`` asked; None if there is none."""
        while True:
            model = self.solve(assumed)
            if model is None or self.lazy is None:
                return model
            broken = self.lazy(frozenset(literal for literal in model if abs(literal) < SWITCH))
            if broken is None:
                return model
            self._step(LAZY_STEPS)
            self.add(broken)

    def _step(self, steps: int) -> None:
        self.steps += steps
        if self.steps > MOST_STEPS:
            raise TooManyChoices

    def solve(self, assumed: Sequence[Literal]) -> Model | None:
        if self.empty:
            return None
        held: dict[int, bool] = {}
        if not self._assign([*self.units, *assumed], held, []):
            return None
        order = sorted(self.variables - set(held))
        trail: list[Decided] = []
        at = 0
        while at < len(order):
            variable = order[at]
            if variable in held:
                at += 1
                continue
            assigned: list[int] = []
            if self._assign([-variable], held, assigned):
                trail.append((at, assigned, True))
                continue
            _undo(held, assigned)
            assigned = []
            if self._assign([variable], held, assigned):
                trail.append((at, assigned, False))
                continue
            _undo(held, assigned)
            if not self._backtrack(order, held, trail):
                return None
            at = trail[-1][0]
        return frozenset(variable if value else -variable for variable, value in held.items())

    def _backtrack(self, order: Sequence[int], held: dict[int, bool], trail: list[Decided]) -> bool:
        """Turns the last decision that was false into true; False when there is none left."""
        while trail:
            at, assigned, first = trail.pop()
            _undo(held, assigned)
            if first:
                assigned = []
                if self._assign([order[at]], held, assigned):
                    trail.append((at, assigned, False))
                    return True
                _undo(held, assigned)
        return False

    def _assign(self, literals: Iterable[Literal], held: dict[int, bool], assigned: list[int]) -> bool:
        """Holds literals and all that follows from them by unit clauses; False on a contradiction."""
        queue = list(literals)
        while queue:
            literal = queue.pop()
            variable, value = abs(literal), literal > 0
            if variable in held:
                if held[variable] != value:
                    return False
                continue
            held[variable] = value
            assigned.append(variable)
            self._step(sum(len(self.clauses[index]) for index in self.occurs[-literal]))
            for index in self.occurs[-literal]:
                unit = self._unit(self.clauses[index], held)
                if unit == 0:
                    return False
                if unit is not None:
                    queue.append(unit)
        return True

    @staticmethod
    def _unit(clause: Clause, held: dict[int, bool]) -> Literal | None:
        """The one literal left, 0 when none is, None when the clause holds or more are left."""
        left = 0
        for literal in clause:
            value = held.get(abs(literal))
            if value is None:
                if left:
                    return None
                left = literal
            elif value == (literal > 0):
                return None
        return left


def _undo(held: dict[int, bool], assigned: Iterable[int]) -> None:
    for variable in assigned:
        del held[variable]
