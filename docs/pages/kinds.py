"""docs/authors/kinds/: the mechanical parts of the page of one kind, and the table of all kinds."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable
from functools import partial
from typing import Any

from pages import source
from pages.markdown import code, codes, prose, table, text
from pages.marked import fill
from pages.repository import manifest_of, records
from wf_core import api, hookspecs
from wf_core.manifests.declarations import FeatureDecl
from wf_core.manifests.stages import default_stage
from wf_core.manifests.vocabulary import MODEL_KINDS, SEAMS
from wf_core.templates.distribution import KINDS as WITH_TEMPLATE
from wf_core.testing.checks import checks_for
from wf_core.testing.conformance import CLASSES

FOLDER = "docs/authors/kinds"
HOOKS = {**hookspecs.HOOK_OF_KIND, "calibrator": "wf_calibrator"}
"""A calibrator is no kind of plugin: the plugin of a feature brings it beside the feature."""
BESIDE = {"model-source": {"scorer": hookspecs.wf_prompt_scorer}}
"""Further hooks that a plugin of the kind may have, by the part of the page."""
FORMS = {
    "attention-provider": [api.AttentionProvider],
    "feature-cache": [api.FeatureCache, api.CacheState, api.ResidualState],
    "sparse-kernel": [api.AttentionProvider],
    "vae-decoder": [api.VaeDecoder],
    "fusion": [api.Technique],
    "execution-mode": [api.Technique],
    "model-family": [api.ModelFamily, api.CallPlan, api.Schedule, api.Wiring],
    "model-source": [],
    "calibrator": [api.Calibrator],
}
"""What the hook of a kind works with. A kind that is not here is declared only: nothing but its hook is settled."""
DECLARED_ONLY = (
    "Not settled yet: no plugin implements this kind, and neither the kit nor `wf new-plugin` knows it. The host calls "
    "the hook and runs the technique that it returns, as it does for every kind; nothing more is promised than the "
    "signature."
)


def pages() -> dict[str, Callable[[], str]]:
    """Every page, by name."""
    return {f"{FOLDER}/{kind}.md": partial(page, kind) for kind in HOOKS}


def page(kind: str) -> str:
    """The page of one kind."""
    return fill(f"{FOLDER}/{kind}.md", _parts(kind))


def _parts(kind: str) -> dict[str, Callable[[], str]]:
    if kind not in FORMS:
        return {"hook": partial(_hook, kind)}
    parts = {"hook": partial(_hook, kind)}
    parts |= {name: partial(_signature, hook) for name, hook in BESIDE.get(kind, {}).items()}
    if FORMS[kind]:
        parts["base"] = partial(_base, kind)
    if kind not in MODEL_KINDS and kind != "calibrator":
        parts["declares"] = partial(_declares, kind)
    if kind in CLASSES:
        parts["checks"] = partial(_checks, kind)
    return parts


# --- the hook ----------------------------------------------------------------------------------------------------


def _hook(kind: str) -> str:
    return _signature(getattr(hookspecs, HOOKS[kind]), "" if kind in FORMS else f" {DECLARED_ONLY}")


def _signature(found: Any, more: str = "") -> str:
    """A hook as a plugin writes it, and what is said of it."""
    hook = source.definition(found)
    arguments = [ast.unparse(argument) for argument in hook.args.args]
    inside = ", ".join(arguments)
    assert hook.returns is not None
    lines = [
        "```python",
        "@hookimpl",
        f"def {hook.name}({inside}) -> {ast.unparse(hook.returns)}: ...",
        "```",
    ]
    return "\n".join([*lines, "", prose(source.said(ast.get_docstring(hook)) + more)])


# --- the base class ----------------------------------------------------------------------------------------------


def _base(kind: str) -> str:
    rows = [row for cls in FORMS[kind] for row in _rows(cls)]
    every = [cls for cls in FORMS[kind] if issubclass(cls, api.Technique) and cls is not api.Technique]
    inherited = f"{codes(cls.__name__ for cls in every)} has everything of [Technique](../api.md#technique) besides.\n"
    head = "## What it works with\n\n" + prose(
        "**Bold** methods are those that a subclass must write; [api.md](../api.md) has all that a plugin may import."
    )
    return "\n".join([head, table(["", "says"], rows), inherited if every else ""])


def _rows(cls: type) -> list[list[str]]:
    rows = [[f"{code(cls.__name__)}", text(source.said(cls.__doc__))]]
    for method in source.methods(cls):
        shown = code(f".{method.name}" if source.is_property(method) else f".{source.signature(method)}")
        shown = f"**{shown}**" if source.abstract(method) else shown
        rows.append([shown, text(source.said(ast.get_docstring(method)))])
    return rows


# --- what such features declare ----------------------------------------------------------------------------------


def _declares(kind: str) -> str:
    features = [f for record in records() for f in manifest_of(record).features if f.kind == kind]
    seams = Counter(seam for feature in features for seam in feature.seams)
    rows = [[code(seam), text(SEAMS[seam])] for seam in SEAMS if seam in seams]
    slots = sorted({feature.slot for feature in features if feature.slot})
    lines = [
        f"Stage, unless the manifest names one: {code(default_stage(kind))}.",
        f"Slots that features of this repository take: {codes(slots)}." if slots else "",
        _effects(features),
        f"Counters that their evidence names: {codes(sorted(_counters(features)))}.",
    ]
    head = "## What its features declare\n"
    return "\n".join(
        [head, table(["seam", "where, arguments and result"], rows), prose(" ".join(filter(None, lines)))]
    )


def _effects(features: list[FeatureDecl]) -> str:
    """The words that the features here declare, the most frequent first; those that one alone has are its own."""
    found = Counter(word for f in features for word in {rule.effect.name for rule in f.effects})
    words = sorted(found, key=lambda word: (-found[word], word))
    common = [word for word in words if found[word] > 1 or len(features) == 1]
    return (
        f"[Effects](../../rules.md#effects) that several of them declare: {codes(common)}." if common else ""
    )


def _counters(features: list[FeatureDecl]) -> set[str]:
    return {n for f in features for item in f.evidence for n in (item.counter, item.equals_counter) if n}


# --- the kit -----------------------------------------------------------------------------------------------------


def _checks(kind: str) -> str:
    checks = checks_for(kind, implemented=True)
    made = f"{code(CLASSES[kind].__name__)} makes these {len(checks)} checks"
    told = f"{made}; [the kit](../conformance.md) says what each proves: "
    names = ", ".join(check.name.replace("_", " ") for check in checks)
    return "## What the kit checks\n\n" + prose(f"{told}{names}.")


# --- all kinds ---------------------------------------------------------------------------------------------------


def overview() -> str:
    """The table of kinds, for docs/authors/README.md."""
    rows = []
    for kind, hook in HOOKS.items():
        node = source.definition(getattr(hookspecs, hook))
        assert node.returns is not None
        tests = code(CLASSES[kind].__name__) if kind in CLASSES else ""
        new = "yes" if kind in WITH_TEMPLATE else ""
        rows.append([f"[{kind}](kinds/{kind}.md)", code(hook), code(ast.unparse(node.returns)), tests, new])
    return table(["kind", "hook", "returns", "conformance class", "`wf new-plugin`"], rows)
