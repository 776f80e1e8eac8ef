"""The pytest plugin of wf-core: fixtures for the tests of plugins. Loading it imports neither torch nor a plugin."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from wf_core.host import Host
    from wf_core.model.bench import Bench

pytest.register_assert_rewrite("wf_core.testing.conformance")


@pytest.fixture
def wf_host() -> Callable[..., Host]:
    """``wf_host(*plugins)``: a host of these plugins alone, given as modules, their names, or manifests.

    It refuses to discover: what else is installed does not count.
    """
    from wf_core.testing.hosts import host_of

    def make(*plugins: Any) -> Host:
        if not plugins:
            raise ValueError("wf_host() discovers nothing: name the plugins, as modules or manifests")
        return host_of(*plugins)

    return make


@pytest.fixture
def wf_bench() -> Callable[..., Bench]:
    """``wf_bench(family_module)``: the tiny pipeline of a family and short calls of it; the toy family without one."""
    from wf_core.testing.bench import bench_at
    from wf_core.testing.cases import TOY
    from wf_core.testing.hosts import record_of

    def make(family: str = TOY) -> Bench:
        manifest = record_of(family).manifest
        assert manifest is not None and manifest.family is not None, f"{family} is no model family"
        return bench_at(manifest.family.trial)

    return make
