"""A matrix as one HTML page: everything is in the file, nothing is fetched. The frame is ``matrix_page.html``."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any

from wf_core.cli.machine import processes
from wf_core.cli.matrix_text import alone_words, clashes, said
from wf_core.facts.machines import THIS
from wf_core.resolving.matrix import LEGAL, REFUSED, Entry, Matrix, Pair
from wf_core.resolving.plan import shown_request

SYMBOLS = {"legal": "·", "untested": "?", "refused": "✕", "place": "⊘", "alone": "\N{EN DASH}"}
WORDS = {
    "legal": "legal together",
    "untested": "untested: legal with a warning",
    "refused": "refused together",
    "place": "one at a time: one place, or one key",
    "alone": "refused because one of the two is refused alone",
}


def page(matrix: Matrix) -> str:
    """The whole page. The same matrix gives the same text."""
    frame = Path(__file__).with_name("matrix_page.html").read_text(encoding="utf-8")
    for name, text in _parts(matrix).items():
        frame = frame.replace(f"<!--{name}-->", text)
    return frame


def look(pair: Pair) -> str:
    """How a pair is shown: a key of `SYMBOLS`."""
    if pair.state != REFUSED:
        return pair.state
    return "alone" if pair.only_alone else "place" if pair.one_place else "refused"


def _parts(matrix: Matrix) -> dict[str, str]:
    versions = dict(matrix.versions)
    place = f"{matrix.model} on {'this machine' if matrix.device == THIS else matrix.device}"
    return {
        "title": escape(
            f"{place}, {processes(matrix.world)}: which features go together (wf-core {versions['wf-core']})"
        ),
        "place": f"<b>{escape(matrix.model)}</b> on <b>{escape(place.partition(' on ')[2])}</b>, "
        f"{processes(matrix.world)} · wf-core {escape(versions['wf-core'])}",
        "summary": _summary(matrix),
        "kinds": "".join(_check("kind", kind, f"{kind} {len(of)}") for kind, of in matrix.kinds().items()),
        "plugins": "".join(
            f"<option>{escape(name)}</option>" for name in sorted({e.offer.plugin for e in matrix.features})
        ),
        "legend": "".join(_legend(matrix)),
        "table": "".join(_table(matrix)),
        "words": "".join(_words(matrix)),
        "codes": "".join(
            f"<dt>{escape(code)}</dt><dd>{escape(reason)}</dd>" for code, reason in _all_codes(matrix).items()
        ),
        "versions": "".join(f"<li>{escape(name)} {escape(v)}</li>" for name, v in matrix.versions),
        "data": _script(_data(matrix)),
    }


def _summary(matrix: Matrix) -> str:
    alone = sum(entry.alone == REFUSED for entry in matrix.features)
    judged = sum(bool(entry.offer.declared_only) for entry in matrix.features)
    return (
        f"{len(matrix.features)} features, of which {alone} are refused alone and {judged} (marked *) cannot be "
        f"activated yet but are judged like all others; {len(matrix.pairs)} pairs."
    )


def _check(name: str, value: str, label: str) -> str:
    return (
        f'<label class="chip"><input type="checkbox" name="{name}" value="{escape(value)}" checked>'
        f"<span>{escape(label)}</span></label>"
    )


def _legend(matrix: Matrix) -> Iterator[str]:
    counts: dict[str, int] = dict.fromkeys(SYMBOLS, 0)
    for pair in matrix.pairs:
        counts[look(pair)] += 1
    for name, symbol in SYMBOLS.items():
        yield (
            f'<button type="button" class="key" data-look="{name}" aria-pressed="true">'
            f'<span class="cell {name}" aria-hidden="true">{symbol}</span> {WORDS[name]} <b>{counts[name]}</b></button>'
        )


# --- the table ---------------------------------------------------------------------------------------------------


def _table(matrix: Matrix) -> Iterator[str]:
    looks = {}
    for pair in matrix.pairs:
        looks[pair.a, pair.b] = looks[pair.b, pair.a] = look(pair)
    kinds = matrix.kinds()
    yield '<thead><tr class="kinds"><td class="corner"></td>'
    for kind, entries in kinds.items():
        yield f'<th scope="colgroup" colspan="{len(entries)}" data-kind="{kind}"><span>{kind}</span></th>'
    yield '</tr><tr class="names"><td class="corner">feature</td>'
    for entry in matrix.features:
        yield f'<th scope="col" class="{_own(entry)}"><span>{_name(entry)}</span></th>'
    yield "</tr></thead>"
    for kind, entries in kinds.items():
        yield f'<tbody data-kind="{kind}"><tr class="kind"><th scope="rowgroup" colspan="{len(matrix.features) + 1}">'
        yield f"<span>{kind}</span></th></tr>"
        for entry in entries:
            yield f'<tr class="f"><th scope="row" class="{_own(entry)}"><span>{_name(entry)}</span></th>'
            yield from (_cell(entry, other, looks) for other in matrix.features)
            yield "</tr>"
        yield "</tbody>"


def _cell(entry: Entry, other: Entry, looks: Mapping[tuple[str, str], str]) -> str:
    if entry is other:
        own = "alone" if entry.alone == REFUSED and entry.needs_world else entry.alone
        return f'<td class="self {own}">{SYMBOLS[own] if own != LEGAL else "✓"}</td>'
    name = looks[entry.name, other.name]
    return f'<td class="{name}">{SYMBOLS[name]}</td>'


def _own(entry: Entry) -> str:
    return "idle" if entry.offer.declared_only else "ready"


def _name(entry: Entry) -> str:
    return escape(entry.name) + ("<i>*</i>" if entry.offer.declared_only else "")


# --- the same in words -------------------------------------------------------------------------------------------


def _words(matrix: Matrix) -> Iterator[str]:
    for kind, entries in matrix.kinds().items():
        yield f"<h3>{escape(kind)}</h3><dl>"
        for entry in entries:
            yield f"<dt>{_name(entry)}</dt>"
            yield f"<dd>{escape(alone_words(entry))}</dd>"
            for word, codes, others in clashes(entry, matrix):
                yield f"<dd>{word} with {escape(', '.join(others))} ({escape(', '.join(codes))})</dd>"
        yield "</dl>"


def _all_codes(matrix: Matrix) -> dict[str, str]:
    """Every code that occurs, alone or between two, with one sentence."""
    found = said(matrix)
    for entry in matrix.features:
        for violation in entry.violations:
            found.setdefault(violation.code, violation.reason)
    return dict(sorted(found.items()))


# --- what the script reads -----------------------------------------------------------------------------------------


def _data(matrix: Matrix) -> dict[str, Any]:
    """Features in order of the table, pairs by their two places in it, and every sentence once."""
    sentences: dict[str, int] = {}
    at = {entry.name: number for number, entry in enumerate(matrix.features)}
    pairs = {
        f"{at[pair.a]},{at[pair.b]}": [
            look(pair),
            [[v.code, v.level, sentences.setdefault(v.reason, len(sentences))] for v in pair.between],
            [at[name] for name in pair.alone],
        ]
        for pair in matrix.pairs
        if pair.state != LEGAL
    }
    return {
        "command": f"--model {shlex.quote(matrix.model)} --device {shlex.quote(matrix.device)}"
        + (f" --world {matrix.world}" if matrix.world not in (None, 1) else ""),
        "words": WORDS,
        "symbols": SYMBOLS,
        "features": [_feature(entry) for entry in matrix.features],
        "pairs": pairs,
        "sentences": list(sentences),
    }


def _feature(entry: Entry) -> dict[str, Any]:
    told: Iterable[tuple[str, str]] = dict.fromkeys((v.code, v.reason) for v in entry.violations)
    return {
        **{key: value for key, value in entry.to_json().items() if key not in ("codes", "request", "slot")},
        "request": shown_request(sorted(entry.requests[0].items())) if entry.requests else "",
        "reasons": [list(pair) for pair in told],
        "summary": entry.offer.feature.summary,
    }


def _script(value: Mapping[str, Any]) -> str:
    """JSON that can stand inside a script element: nothing in it ends the element."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), sort_keys=True)
    return text.replace("<", "\\u003c").replace("\u2028", "\\u2028").replace("\u2029", "\\u2029")
