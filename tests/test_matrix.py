"""The matrix of the real table: it says what resolving says, it is the same every time, and its page stands alone."""

from __future__ import annotations

import json
import random
from html.parser import HTMLParser

import pytest

from wf_core import Host, Refused
from wf_core.cli.matrix_page import page
from wf_core.cli.matrix_text import lines
from wf_core.resolving.asking import together
from wf_core.resolving.matrix import ONE_VALUE, WORLDS, Matrix, build_matrix

MODEL, DEVICE = "wan2.1-t2v-1.3b", "h200"
SAMPLED = 200


def make(host: Host, world: int | None = None) -> Matrix:
    declared = host.model(MODEL)
    assert declared is not None
    run = {key: value for key, value in declared.defaults_dict().items() if key not in ("dtype", "fps")}
    facts = host.facts(MODEL, run, device=DEVICE, world=world)
    worlds = {number: host.facts(MODEL, run, device=DEVICE, world=number) for number in WORLDS}
    return build_matrix(facts, host.catalog, model=MODEL, device=DEVICE, worlds=worlds)


@pytest.fixture(scope="module")
def matrix(host: Host) -> Matrix:
    return make(host)


@pytest.mark.parametrize("world", [None, 2])
def test_sampled_pairs_agree_with_resolving(host: Host, world: int | None) -> None:
    matrix = make(host, world)
    declared = host.model(MODEL)
    assert declared is not None
    run = {key: value for key, value in declared.defaults_dict().items() if key not in ("dtype", "fps")}
    entries = {entry.name: entry for entry in matrix.features}
    for pair in random.Random(7).sample(matrix.pairs, SAMPLED):
        one, other = entries[pair.a], entries[pair.b]
        request = together(one.requests, other.requests, lambda key: host.catalog.canonical(key, "wan"))
        if request is None:
            assert pair.state == "refused"
            assert ONE_VALUE in pair.codes
            continue
        try:
            plan = host.resolve(MODEL, request, run=run, device=DEVICE, world=world)
            found = tuple(warning for warning in plan.warnings if warning.level != "inert")
            state = "untested" if found else "legal"
        except Refused as refused:
            found, state = refused.refusal.violations, "refused"
        assert (pair.a, pair.b, pair.state) == (pair.a, pair.b, state)
        assert set(pair.codes) == {violation.code for violation in found}
        assert set(pair.between) <= set(found)


def test_every_feature_can_be_asked_for_and_is_there_once(host: Host, matrix: Matrix) -> None:
    names = [entry.name for entry in matrix.features]
    assert sorted(names) == sorted({offer.feature.name for offer in host.catalog.features()})
    assert all(entry.requests for entry in matrix.features)
    assert len(matrix.pairs) == len(names) * (len(names) - 1) // 2


def test_what_the_table_is_known_to_say(matrix: Matrix) -> None:
    pairs = {frozenset((pair.a, pair.b)): pair for pair in matrix.pairs}
    graph = pairs[frozenset(("teacache", "cuda-graph"))]
    assert (graph.state, graph.alone) == ("refused", ())
    assert {"WF-C010", "WF-C012"} <= set(graph.codes)
    assert pairs[frozenset(("teacache", "sdpa"))].state == "legal"
    assert pairs[frozenset(("sdpa", "math"))].codes == ("WF-R004",)
    assert pairs[frozenset(("teacache", "magcache"))].codes == ("WF-C001",)
    alone = {entry.name: entry for entry in matrix.features}
    assert (alone["ulysses"].alone, alone["ulysses"].needs_world) == ("refused", 2)
    assert (alone["sage3"].alone, alone["sage3"].needs_world) == ("refused", None)


def test_the_json_is_sorted_and_the_same_every_time(matrix: Matrix) -> None:
    answer = matrix.to_json()
    names = [feature["name"] for feature in answer["features"]]
    assert names == sorted(names)
    pairs = [(pair["a"], pair["b"]) for pair in answer["pairs"]]
    assert pairs == sorted(pairs)
    assert all(a < b for a, b in pairs)
    assert {feature["alone"] for feature in answer["features"]} <= {"legal", "refused", "untested"}
    for item in (*answer["features"], *answer["pairs"]):
        assert item["codes"] == sorted(set(item["codes"]))
    again = make(Host.discover())
    assert json.dumps(again.to_json()) == json.dumps(answer)
    assert page(again) == page(matrix)
    assert list(lines(again, 100)) == list(lines(matrix, 100))


def test_a_refused_pair_gives_a_reason_for_it(matrix: Matrix) -> None:
    for pair in matrix.pairs:
        told = pair.to_json()
        assert bool(told["reasons"]) == (pair.state != "legal"), told
        assert bool(told["codes"]) == (pair.state != "legal"), told


class Page(HTMLParser):
    """What stands in the page: text, and everything that a browser would fetch."""

    VOID = {"meta", "input"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.text: list[str] = []
        self.fetched: list[str] = []
        self.title = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [str(value) for name, value in attrs if name in ("src", "href", "srcset", "data")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["title"]:
            self.title += data
        if self.open and self.open[-1] not in ("script", "style"):
            self.text.append(data)


def test_the_page_stands_alone_and_leaves_nothing_out(matrix: Matrix) -> None:
    text = page(matrix)
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    assert parsed.open == []
    assert parsed.fetched == []
    for outside in ("http:", "https:", "@import", "url(", "<!--"):
        assert outside not in text
    for words in (MODEL, DEVICE, "wf-core " + dict(matrix.versions)["wf-core"]):
        assert words in parsed.title
    seen = " ".join(parsed.text)
    codes = {code for item in (*matrix.features, *matrix.pairs) for code in item.codes}
    for word in (*codes, *(entry.name for entry in matrix.features)):
        assert word in seen
    for name, version in matrix.versions:
        assert f"{name} {version}" in seen


def test_the_text_has_a_line_for_every_feature_and_a_sentence_for_every_code(matrix: Matrix) -> None:
    text = list(lines(matrix, 110))
    for entry in matrix.features:
        assert any(line.startswith(f"  {entry.name}") for line in text)
    for code in {violation.code for pair in matrix.pairs for violation in pair.between}:
        assert any(line.startswith(f"{code}  ") for line in text)
    assert max(map(len, text[1:])) <= 110
