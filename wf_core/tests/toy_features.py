"""Toy plugins that clash: two caches of one place, a graph, ranks, and one that no model of the family can use."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from wf_core.cli import main

from .conftest import Site

FEATURE = """
schema = 1
name = "{name}"
api = 1
kind = "{kind}"
[[feature]]
name = "{feature}"
tier = "equivalent"
tolerance = "none: only for tests"
effects = {effects}
families = ["toy"]
evidence = [{{ counter = "calls", at_least = 1 }}]
{more}
"""
GRAPH = FEATURE.format(
    name="execution-graph",
    kind="execution-mode",
    feature="toy-graph",
    effects='["captures-graph@denoiser"]',
    more='state = "unavailable: not implemented"\n[[switch]]\nname = "toy_graph"\nfeature = "toy-graph"\nform = "flag"',
)
RANKS = FEATURE.format(
    name="parallel-toy",
    kind="parallel-strategy",
    feature="toy-ranks",
    effects='["occupies-ranks(degree)"]',
    more='example = { toy-degree = 2 }\n[[feature.option]]\nname = "degree"\ntype = "int"\nmin = 1\ndefault = 1\n'
    '[[switch]]\nname = "toy_degree"\nfeature = "toy-ranks"\nform = "value"\noption = "degree"\noff = [1]',
)
NEEDS = '[[feature.condition]]\nfact = "{fact}"\n{test}\nreason = "{reason} (it is {{value}})"\n'
OTHER_FAMILY = (
    '[family]\nname = "other"\ntransformer_classes = { OtherTransformer = "other" }\nseams = ["stack"]\n'
)
UPHILL = NEEDS.format(fact="model.layers", test="le = 10", reason="too deep")


def runner(site: Site, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Runs a command in this process with only the test's plugins on the path; returns the result."""
    for name in ("WF_BLOCK", "WF_ONLY", "WF_STRICT", "WF_DEBUG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(sys, "path", [str(site.folder)])

    def run(*arguments: str, **environ: Any) -> Result:
        return CliRunner().invoke(main, list(arguments), env=environ, catch_exceptions=False)

    return run


def clashing(site: Site, toy_checkpoint: Path) -> Site:
    """A family with a model, two caches of one place, one that is refused alone, a graph, and a strategy of ranks."""
    site.family()
    site.plugin(
        "m",
        'schema = 1\nname = "m"\napi = 1\nkind = "model-source"\n[[model]]\nname = "tiny"\nfamily = "toy"\n'
        f'path = "{toy_checkpoint}"\n[model.defaults]\nheight = 64\nwidth = 64\n',
    )
    site.cache("cache-a")
    site.cache("cache-b_2", feature="b_2")
    site.cache("cache-deep", feature="deep", more=UPHILL)
    site.plugin("execution-graph", GRAPH)
    site.plugin("parallel-toy", RANKS)
    return site
