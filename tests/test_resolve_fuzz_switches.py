"""Random requests over every switch that is installed, for every model and machine that is known.

Each has a plan, or a refusal with at least one code, and never another exception. What a refusal recommends is tried
here on the request as it was typed: the nearest request is legal, and a fix that is called single suffices alone.
"""

from __future__ import annotations

import os
import random
from collections.abc import Mapping
from functools import cache
from itertools import combinations
from typing import Any

import attrs
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from wf_core import Host, Plan, Refused
from wf_core.errors import BadInput
from wf_core.facts import Facts
from wf_core.facts.machines import machine_names
from wf_core.manifests.options import OptionDecl
from wf_core.resolving.plan import Refusal
from wf_core.resolving.resolve import resolve

pytestmark = pytest.mark.slow

REQUESTS, PARTS = int(os.environ.get("WF_FUZZ_REQUESTS", "1500")), 4
"""`make soak` asks for 10,000."""
CODES = 40 if REQUESTS >= 10_000 else 30
"""More than these are met in each part: fewer requests meet fewer."""
UNKNOWN_FAMILY = "no-plugin-knows-it"
NONSENSE: tuple[Any, ...] = (
    "", "auto", "none", "nonsense", "a\nb", "é", "true", "off", "0", "-1", "1e9", "nan", "../x", "8,8",
    None, True, False, 0, 1, 2, 3, 4, 8, 60, -1, 10**30, 0.0, 0.25, 1.5, float("nan"), float("inf"), -0.0,
    (), [], [1, 2], [[]], ["x", None], {}, {"": 1}, {"mode": "fp8"}, {"x": {"y": []}}, {"name": 3}, object(),
)  # fmt: skip
SIZES: tuple[dict[str, Any], ...] = (
    {}, {}, {"height": 480, "width": 832, "num_frames": 81}, {"height": 704, "width": 1280, "num_frames": 121},
    {"height": 704, "width": 1280, "num_frames": 93, "num_inference_steps": 35}, {"num_inference_steps": 50},
    {"height": 481, "width": 833, "num_frames": 80}, {"guidance_scale": 1.0}, {"grad_enabled": True},
)  # fmt: skip


@cache
def host() -> Host:
    return Host.discover()


@cache
def models() -> tuple[str, ...]:
    return (*host().catalog.model_names(), "some/model-of-wan", "some/model-of-cosmos", UNKNOWN_FAMILY)


@cache
def facts(model: str, device: str, world: int | None, group: bool | None) -> Facts:
    family = {"some/model-of-wan": "wan", "some/model-of-cosmos": "cosmos", UNKNOWN_FAMILY: "nobody"}
    return host().facts(model, family=family.get(model), device=device, world=world, process_group=group)


@attrs.frozen
class Case:
    """One request and what it is judged for."""

    request: dict[str, Any]
    model: str
    device: str
    world: int | None
    group: bool | None
    run: dict[str, Any]

    def resolve(self, request: Mapping[str, Any]) -> Plan:
        known = facts(self.model, self.device, self.world, self.group)
        return resolve(request, known, host().catalog, run=self.run)

    def legal(self, request: Mapping[str, Any]) -> bool:
        try:
            self.resolve(request)
        except Refused:
            return False
        return True


# --- generating ------------------------------------------------------------------------------------------------------


@cache
def values() -> dict[str, tuple[Any, ...]]:
    """For each key, dotted keys below selectors included, values that are valid, off, or just out of range."""
    catalog = host().catalog
    found: dict[str, list[Any]] = {name: near(key.option) for name, key in catalog.host_keys.items()}
    for name, selector in catalog.selectors.items():
        named = [*catalog.selector_values(name), *selector.off, *selector.ambiguous]
        found[name] = [*named, *({selector.discriminator: value} for value in named)]
    for offer in catalog.features():
        for switch in offer.switches:
            option = offer.feature.option(switch.option or switch.shorthand)
            own = [*switch.off, *(near(option) if option is not None else [True, "true"])]
            for key in (switch.name, *switch.aliases):
                found.setdefault(key, []).extend(own + ([True] if switch.form == "feature" else []))
        for select in offer.feature.selects:
            for option in offer.feature.options:
                found.setdefault(f"{select.switch}.{option.name}", []).extend(near(option))
        for key, value in offer.feature.example.items():
            found.setdefault(key, []).extend([value] * 3)
    return {key: tuple(found[key]) for key in sorted(found)}


def near(option: OptionDecl) -> list[Any]:
    """Values in, at and beyond the range of an option."""
    bounds = [bound for bound in (option.min, option.max, option.above) if bound is not None]
    numbers = [number for bound in bounds for number in (bound - 1, bound, bound + 1, bound / 2)]
    texts = {"bytes": ["24GiB", "1MiB", "lots"], "path": ["x.safetensors", "nowhere"], "str": ["x"]}
    lists = [[2, 2], [16, 16], (34, 34), [1]] if option.type.endswith("s") else []
    flags = [True, False] if option.type == "bool" else []
    return [*option.choices, *numbers, *texts.get(option.type, []), *lists, *flags, option.default, 2, 4]


def generated(draw: random.Random) -> Case:
    known = values()
    keys = draw.sample(list(known), draw.choice((0, 1, 1, 1, 2, 2, 2, 3, 3, 4, 7)))
    request = dict(item for key in keys for item in _pairs(draw, key, known[key]))
    world = draw.choice((None, 1, 1, 1, *range(1, 9)))
    return Case(
        request=request,
        model=draw.choice(models()),
        device=draw.choice(machine_names()),
        world=world,
        group=draw.choice((None, None, None, True, False)),
        run=draw.choice(SIZES),
    )


def _pairs(draw: random.Random, key: str, known: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """A key, most often well spelled and with a value meant for it; now and then with an option below it."""
    value = draw.choice(NONSENSE) if draw.random() < 0.15 else draw.choice(known)
    if isinstance(value, str) and draw.random() < 0.05:
        value = _typo(draw, value)
    spelled = key
    if draw.random() < 0.06:
        spelled = _typo(draw, key)
    elif draw.random() < 0.1:
        spelled = key.replace("_", "-")
    pairs = [(spelled, value)]
    if draw.random() < 0.05:
        pairs.append((f"{key}.{draw.choice(('threshold', 'mode', 'x', 'name'))}", draw.choice(NONSENSE)))
    return pairs


def _typo(draw: random.Random, text: str) -> str:
    at = draw.randrange(len(text) + 1)
    return draw.choice((text[:at] + text[at + 1 :], text[:at] + "x" + text[at:], text.upper(), text + " "))


# --- what holds of every answer ---------------------------------------------------------------------------------------


def answered(case: Case) -> Plan | Refusal:
    try:
        return case.resolve(case.request)
    except Refused as refused:
        return refused.refusal


def check(case: Case) -> Plan | Refusal:
    answer = answered(case)
    if isinstance(answer, Refusal):
        check_refusal(case, answer)
    else:
        assert answer.explain() and answer.to_json()
    return answer


def check_refusal(case: Case, refusal: Refusal) -> None:
    assert refusal.violations
    for violation in refusal.violations:
        assert violation.code and violation.involves, violation
        assert violation.reason[-1] in ".?", violation
    assert refusal.explain() and "\n" not in refusal.one_line() and refusal.to_json()
    assert (refusal.nearest is None) == (not case.legal({})), refusal.nearest
    if refusal.nearest is None:
        assert refusal.fixes == ()
        return
    assert case.legal(literally(case.request, refusal.nearest.to_json())), refusal.nearest
    for fix in refusal.fixes:
        assert case.legal(literally(case.request, fix.to_json())) == fix.single, fix


def literally(request: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The change made by what its JSON says and nothing else."""
    return {**{key: value for key, value in request.items() if key not in change["unset"]}, **change["set"]}


@pytest.mark.parametrize("part", range(PARTS))
def test_whatever_is_asked_for_has_a_plan_or_a_refusal_that_helps(part: int) -> None:
    draw = random.Random(part)
    answers = [check(generated(draw)) for _ in range(REQUESTS // PARTS)]
    legal = [answer for answer in answers if isinstance(answer, Plan)]
    assert len(legal) > 0.1 * len(answers)
    refused = [answer for answer in answers if isinstance(answer, Refusal)]
    assert len({violation.code for answer in refused for violation in answer.violations}) > CODES


def test_where_keys_are_only_taken_out_no_fewer_would_do() -> None:
    draw, seen = random.Random("fewest"), 0
    while seen < 100:
        case = generated(draw)
        answer = answered(case)
        nearest = answer.nearest if isinstance(answer, Refusal) else None
        if nearest is None or nearest.set or len(nearest.unset) < 2:
            continue
        seen += 1
        for fewer in range(1, len(nearest.unset)):
            for out in combinations(case.request, fewer):
                left = {key: value for key, value in case.request.items() if key not in out}
                assert not case.legal(left), (nearest, out)


@settings(max_examples=300, deadline=None, derandomize=True)
@given(
    st.dictionaries(
        st.sampled_from(sorted(values())).flatmap(
            # a longer key is no request at all: see below
            lambda key: st.one_of(
                st.just(key), st.text(max_size=4).map(lambda end: key + end), st.text(max_size=100)
            )
        ),
        st.one_of(
            st.sampled_from(NONSENSE),
            st.sampled_from([value for several in values().values() for value in several]),
            st.text(),
            st.recursive(st.integers(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)),
        ),
        max_size=5,
    ),
    st.sampled_from(models()),
    st.sampled_from(machine_names()),
    st.integers(1, 8),
    st.sampled_from(SIZES),
)
def test_so_has_what_hypothesis_finds(
    request: dict[str, Any], model: str, device: str, world: int, run: dict[str, Any]
) -> None:
    check(Case(request, model, device, world, None, run))


def test_a_key_of_more_than_a_hundred_characters_is_no_request() -> None:
    with pytest.raises(BadInput, match="no key has more than 100 characters"):
        host().resolve("wan2.1-t2v-1.3b", {"0" * 101: ""})
