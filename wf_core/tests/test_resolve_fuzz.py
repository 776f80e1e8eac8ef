"""Whatever is asked for: a plan or a refusal with at least one code, never another exception, in any order."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from wf_core.errors import Refused
from wf_core.facts import Facts
from wf_core.plugins.catalog import Catalog
from wf_core.plugins.discovery import discover
from wf_core.resolving.plan import Refusal
from wf_core.resolving.resolve import resolve

from .conftest import Site
from .test_request import VAE_MANIFEST

FACTS = Facts.of({"model.family": "toy", "model.id": "toy-1b", "model.hooked": ""}, "test")
KEYS = [
    "feature_cache", "feature-cache.threshold", "feature_cache.algorithm", "alpha", "alpha.coefficients", "beta",
    "vae_tiling", "tiled", "vae_tile_size", "vae_chunk", "offload", "on_ineligible", "profile", "budget", "",
    "no_such_key", "a.b.c",
]  # fmt: skip
SCALARS = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(),
    st.sampled_from(
        ["alpha", "beta", "none", "true", "dense", "component", "resident", "0.5", "", "34,34", "nan", "a\nb"]
    ),
)
VALUES = st.one_of(
    SCALARS,
    st.lists(SCALARS, max_size=3),
    st.dictionaries(
        st.sampled_from(["algorithm", "threshold", "coefficients", "x", ""]), SCALARS, max_size=3
    ),
)


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Catalog:
    site = Site(Path(tmp_path_factory.mktemp("fuzz")) / "site")
    site.family()
    site.cache("cache-alpha")
    site.cache("cache-beta")
    site.plugin("vae-toy", VAE_MANIFEST)
    return Catalog.of(discover([str(site.folder)], {}))


def described(refusal: Refusal) -> str:
    assert refusal.violations
    assert "\n" not in refusal.one_line()
    assert all(violation["code"].startswith("WF-") for violation in refusal.to_json()["violations"])
    return refusal.explain()


def answer(request: dict[str, Any], catalog: Catalog) -> str:
    try:
        plan = resolve(request, FACTS, catalog)
    except Refused as refused:
        return described(refused.refusal)
    assert plan.explain()
    return plan.hash


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(request=st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=5))
def test_any_request_has_an_answer_that_does_not_depend_on_its_order(
    catalog: Catalog, request: dict[str, Any]
) -> None:
    assert answer(request, catalog) == answer(dict(reversed(request.items())), catalog)
