"""``wf matrix``: every pair of toy features, as JSON, as text and as a page."""

from __future__ import annotations

import json
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from wf_core.host import Host
from wf_core.resolving.matrix import build_matrix

from .conftest import Site
from .toy_features import FEATURE, NEEDS, clashing, runner


@pytest.fixture
def wf(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    return runner(site, monkeypatch)


@pytest.fixture
def toys(site: Site, toy_checkpoint: Path) -> Site:
    return clashing(site, toy_checkpoint)


def test_the_matrix_as_json(toys: Site, wf: Any) -> None:
    result = wf("matrix", "tiny", "--json")
    assert (result.exit_code, result.stderr) == (0, "")
    answer = json.loads(result.stdout)
    assert {"schema", "model", "device", "world", "features", "pairs"} <= set(answer)
    assert (answer["schema"], answer["model"], answer["device"], answer["world"]) == (1, "tiny", "this", 1)
    names = [feature["name"] for feature in answer["features"]]
    assert names == sorted(names) == ["a", "b_2", "deep", "toy-graph", "toy-ranks"]
    features = {feature["name"]: feature for feature in answer["features"]}
    assert features["a"]["alone"] == "legal"
    assert (features["deep"]["alone"], features["deep"]["codes"]) == ("refused", ["WF-F001"])
    assert (features["toy-graph"]["alone"], features["toy-graph"]["not_activatable"]) == (
        "legal",
        "not implemented",
    )
    assert features["toy-ranks"]["needs_world"] == 2
    pairs = {(pair["a"], pair["b"]): pair for pair in answer["pairs"]}
    assert list(pairs) == sorted(pairs)
    assert len(pairs) == 10
    assert pairs["a", "b_2"]["codes"] == ["WF-C001"]
    assert pairs["a", "b_2"]["one_place"]
    assert pairs["a", "toy-graph"]["state"] == "refused"
    assert {"WF-C010", "WF-C012"} <= set(pairs["a", "toy-graph"]["codes"])
    assert result.stdout == wf("matrix", "tiny", "--json").stdout


def test_what_is_refused_alone_is_told_once(toys: Site, wf: Any) -> None:
    answer = json.loads(wf("matrix", "tiny", "--json").stdout)
    [pair] = [pair for pair in answer["pairs"] if (pair["a"], pair["b"]) == ("deep", "toy-ranks")]
    assert pair["state"] == "refused"
    assert pair["between"] == []
    assert pair["alone"] == ["deep", "toy-ranks"]
    assert pair["reasons"] == ["deep alone is refused.", "toy-ranks alone is refused."]
    assert pair["codes"] == ["WF-C034", "WF-F001"]
    text = wf("matrix", "tiny").stdout
    assert text.count("too deep") == 1
    assert "only with --world 2" in text


def test_two_values_of_one_key_that_have_no_other_way(site: Site, toy_checkpoint: Path) -> None:
    site.family()
    for name in ("x", "y"):
        select = f'slot = "attention"\nselect = [{{ switch = "attention_backend", values = ["{name}"] }}]'
        text = FEATURE.format(
            name=f"attention-{name}", kind="attention-provider", feature=name, effects="[]", more=select
        )
        site.plugin(f"attention-{name}", text)
    host = Host.discover([str(site.folder)])
    [pair] = build_matrix(host.facts(toy_checkpoint), host.catalog).pairs
    assert (pair.state, pair.codes, pair.one_place) == ("refused", ("WF-R004",), True)
    assert pair.between[0].reason == "attention_backend takes one value: x or y."


def test_an_untested_pair_is_legal_with_a_word_and_refused_under_strict(toys: Site, wf: Any) -> None:
    text = FEATURE.format(
        name="execution-c",
        kind="execution-mode",
        feature="toy-c",
        effects='["rank-uniform-decision"]',
        more='[[switch]]\nname = "toy_c"\nfeature = "toy-c"\nform = "flag"\n',
    )
    toys.plugin("execution-c", text)
    arguments = ("matrix", "tiny", "--world", "2", "--json")
    for strict, state in (("0", "untested"), ("1", "refused")):
        pairs = json.loads(wf(*arguments, WF_STRICT=strict).stdout)["pairs"]
        [pair] = [pair for pair in pairs if (pair["a"], pair["b"]) == ("toy-c", "toy-ranks")]
        assert (pair["state"], pair["codes"]) == (state, ["WF-C031"])
    result = wf("why", "toy-c", "toy-ranks", "--world", "2")
    assert result.exit_code == 0
    assert "legal, but untested" in result.stdout
    assert "untested WF-C031  " in result.stdout


def test_the_matrix_as_text_explains_each_code_once(toys: Site, wf: Any) -> None:
    text = wf("matrix").stdout
    assert text.startswith("tiny on this, 1 process: 5 features")
    for words in ("feature-cache\n", "one at a time with", "toy-graph*", "* cannot be activated yet"):
        assert words in text
    assert text.count("A replayed graph freezes") == 1
    assert max(map(len, text.splitlines()[1:])) <= 140


class Page(HTMLParser):
    """Collects tags that are left open, and everything that would be fetched."""

    VOID = {"meta", "input", "br", "link", "img"}

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.fetched: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in self.VOID:
            self.open.append(tag)
        self.fetched += [value or "" for name, value in attrs if name in ("src", "srcset", "href")]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_the_page_stands_alone_and_escapes_what_manifests_say(toys: Site, wf: Any, tmp_path: Path) -> None:
    odd = NEEDS.format(fact="model.layers", test="le = 1", reason="<b>no</b> </script><!-- & \\u2028")
    toys.cache("cache-odd", feature="odd", more=odd)
    target = tmp_path / "m.html"
    result = wf("matrix", "tiny", "--html", str(target))
    assert result.stdout == f"wrote {target}: 6 features, 15 pairs\n"
    text = target.read_text()
    parsed = Page()
    parsed.feed(text)
    parsed.close()
    assert (parsed.open, parsed.fetched) == ([], [])
    assert "<b>no</b>" not in text
    assert "<!--" not in text
    assert "<title>tiny on this machine, 1 process" in text
    wf("matrix", "tiny", "--html", str(tmp_path / "again.html"))
    assert (tmp_path / "again.html").read_text() == text


def test_a_page_beside_json_keeps_stdout_to_the_one_object(toys: Site, wf: Any, tmp_path: Path) -> None:
    result = wf("matrix", "tiny", "--json", "--html", str(tmp_path / "m.html"))
    assert json.loads(result.stdout)["model"] == "tiny"
    assert (tmp_path / "m.html").exists()


def test_a_matrix_that_the_call_or_the_model_refuses_as_a_whole(toys: Site, wf: Any, tmp_path: Path) -> None:
    for arguments in (["tiny", "--height", "100"], ["tinny"], ["tiny", "--html", str(tmp_path)]):
        result = wf("matrix", *arguments)
        assert (result.exit_code, result.stdout) == (2, "")
        assert result.stderr.count("\n") == 1
