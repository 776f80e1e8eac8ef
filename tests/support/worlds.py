"""Generated catalogs and requests for property tests: features, rules and what is asked for, from a seed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import attrs

from support.plugins import write_plugin
from wf_core.facts import Facts

SEAMS = ("", "guidance", "denoiser", "stack", "block", "attention", "vae.decode")
WORDS = (
    "captures-graph", "captures-graph", "host-state", "skips-blocks", "holds-request-tensors", "collectives",
    "moves-parameters", "weights-as-buffers", "replaces-linear", "reloads-weights", "places-layers",
    "rank-local-decision", "rank-uniform-decision", "splits-guidance", "skips-guidance", "merges-weights",
    "training-safe", "training-safe", "occupies-ranks", "occupies-ranks",
)  # fmt: skip
OWN_WORDS = ("toy-left", "toy-right", "toy-number")
SELECTORS = ("approximate_attention", "attention_backend", "feature_cache", "quantization")
SLOTS = ("", "", "", "attention", "cache")
FACTS = {"model.family": "toy", "model.id": "toy-1b", "model.hooked": "", "toy.number": 3, "toy.limit": 6}


@attrs.frozen
class Toy:
    """One generated feature. ``wants`` is a condition on a fact that is 3, ``group`` a selector that may choose it."""

    name: str
    plugin: int
    slot: str
    effects: tuple[tuple[str, int, str], ...]
    tier: str
    experimental: bool
    wants: int
    group: str
    order: int
    families: tuple[str, ...]
    state: str

    def has(self, word: str) -> list[tuple[int, str]]:
        """The number and seam of each effect of that name that counts; what follows from the tier is one too."""
        found = [(number, seam) for name, number, seam in self.effects if name == word]
        if word in ("occupies-ranks", "toy-number"):
            return [(number, seam) for number, seam in found if number > 1]
        names = {name for name, _, _ in self.effects}
        derived = {
            "lossy": self.tier == "approximate",
            "ranks-unchecked": "rank-uniform-decision" in names and "ranks-checked" not in names,
            "experimental": self.experimental,
            "not-for-training": "training-safe" not in names,
        }
        return [(0, "")] if derived.get(word) else found

    def manifest(self) -> str:
        effects = [
            name + (f"({number})" if number else "") + (f"@{seam}" if seam else "")
            for name, number, seam in self.effects
        ]
        lines = [
            "[[feature]]",
            f'name = "{self.name}"',
            f'tier = "{self.tier}"',
            'tolerance = "none: generated"',
            f"experimental = {str(self.experimental).lower()}",
            f'slot = "{self.slot}"',
            f"effects = {json.dumps(effects)}",
            f"families = {json.dumps(self.families)}",
            'evidence = [{ counter = "calls", at_least = 1 }]',
        ]
        if self.state:
            lines.append(f'state = "{self.state}"')
        if self.group:
            names = f'values = ["{self.name}"], groups = ["auto"]'
            lines.append(f'select = [{{ switch = "{self.group}", {names}, order = {self.order} }}]')
        lines += ["[[feature.condition]]", 'fact = "toy.number"', f"ge = {self.wants}"]
        lines += ['reason = "Too small a number."', f'code = "TOY-{self.name.upper()}"']
        lines += ["[[feature.condition]]", 'fact = "toy.never_known"', "eq = 1", 'reason = "Never known."']
        if not self.group:
            lines += [
                "[[switch]]",
                f'name = "{self.name}"',
                f'feature = "{self.name}"',
                'form = "flag"',
                "off = [false]",
            ]
        return "\n".join(lines) + "\n"


@attrs.frozen
class World:
    """Generated features with further rules, and a request: which features and groups it asks for."""

    toys: tuple[Toy, ...]
    rules: tuple[dict[str, Any], ...]
    asked: tuple[str, ...]
    profile: str
    ranks: int

    def request(self) -> dict[str, Any]:
        keys = {name: "auto" if name in SELECTORS else True for name in self.asked}
        return {**keys, "profile": self.profile} if self.profile != "none" else keys

    def facts(self) -> Facts:
        return Facts.of({**FACTS, "process.world": self.ranks}, "test")

    def write(self, root: Path) -> list[str]:
        """Writes a folder for each plugin; returns the folders."""
        family = '[family]\nname = "toy"\ntransformer_classes = { ToyTransformer = "toy" }\n'
        family += f"seams = {json.dumps([seam for seam in SEAMS if seam])}\n"
        folders = [write_plugin(root / "family", "toy", 'kind = "model-family"\n' + family, "")]
        for number in sorted({toy.plugin for toy in self.toys}):
            text = 'kind = "fusion"\n'
            if number == 0:
                text += _own_words(self.rules)
            text += "".join(toy.manifest() for toy in self.toys if toy.plugin == number)
            folders.append(write_plugin(root / str(number), f"toys-{number}", text, "raise ImportError\n"))
        return [str(folder) for folder in folders]


def _own_words(rules: Sequence[dict[str, Any]]) -> str:
    lines = []
    for word in OWN_WORDS:
        lines += ["[[effect]]", f'name = "{word}"', 'doc = "Generated."']
        lines += ["numbers = 1"] if word == "toy-number" else []
    for rule in rules:
        lines.append("[[rule]]")
        for key, value in rule.items():
            if key == "needs":
                [(comparison, operand)] = [(k, v) for k, v in value.items() if k != "fact"]
                lines.append(
                    f'needs = {{ fact = "{value["fact"]}", {comparison} = {{ option = "{operand["option"]}" }} }}'
                )
            else:
                lines.append(f"{key} = {json.dumps(value)}")
    return "\n".join(lines) + "\n"


# --- generating ------------------------------------------------------------------------------------------------------


def generated(seed: int, most: int) -> World:
    """Features in up to five plugins, sparse enough that requests of all of them are now legal and now not."""
    draw = random.Random(seed)
    count = most if most > 12 else draw.randint(1, most)
    density = draw.choice((0.3, 0.8, 1.5)) if most <= 12 else draw.choice((0.05, 0.15, 0.3))
    losses = draw.choice((0.0, 0.1, 0.3))
    toys = tuple(_toy(draw, number, density, losses) for number in range(count))
    singles = [toy.name for toy in toys if not toy.group]
    groups = sorted({toy.group for toy in toys if toy.group})
    share = draw.choice((0.4, 0.7, 1.0))
    asked = [name for name in singles if draw.random() < share] + [g for g in groups if draw.random() < 0.8]
    profile = draw.choice(("none", "none", "none", "official", "official", "training"))
    return World(toys, _rules(draw), tuple(asked), profile, draw.choice((1, 2, 2, 4)))


def _toy(draw: random.Random, number: int, density: float, losses: float) -> Toy:
    plugin = draw.randrange(5)
    words = (*WORDS, *OWN_WORDS * 2) if plugin == 0 else WORDS
    names = {draw.choice(words) for _ in range(3) if draw.random() < density / 2}
    effects = tuple(
        (
            word,
            draw.choice((1, 2, 2, 4)) if word in ("occupies-ranks", "toy-number") else 0,
            draw.choice(SEAMS),
        )
        for word in sorted(names)
    )
    return Toy(
        name=f"toy{number}",
        plugin=plugin,
        slot=draw.choice(SLOTS) if draw.random() < density else "",
        effects=effects,
        tier="approximate" if draw.random() < losses else draw.choice(("exact", "equivalent")),
        experimental=draw.random() < losses / 2,
        wants=4 if draw.random() < 0.08 else 2,
        group=draw.choice(("", "", *SELECTORS)),
        order=draw.randrange(5),
        families=draw.choice((("*",), ("toy",), ("toy", "other"), ("*",), ("other",)))
        if draw.random() < 0.2
        else ("*",),
        state="unavailable: generated" if draw.random() < 0.15 else "",
    )


def _rules(draw: random.Random) -> tuple[dict[str, Any], ...]:
    def pair() -> list[str]:
        return draw.sample([draw.choice(OWN_WORDS[:2]), draw.choice((*WORDS, *OWN_WORDS))], 2)

    rules: list[dict[str, Any]] = [
        {
            "code": f"TOY-{number}",
            "level": draw.choice(("forbid", "untested")),
            "pair": pair(),
            "scope": draw.choice(("any", "inside")),
            "reason": "Generated.",
        }
        for number in range(draw.randrange(3))
    ]
    if draw.random() < 0.6:
        needs = {"fact": "toy.limit", draw.choice(("ge", "le", "eq")): {"option": "total"}}
        aggregate = draw.choice(("product", "sum", "equal"))
        rules.append(
            {
                "code": "TOY-TOTAL",
                "level": "forbid",
                "aggregate": aggregate,
                "effect": "toy-number",
                "needs": needs,
                "reason": "Generated.",
            }
        )
    return tuple(rules)
