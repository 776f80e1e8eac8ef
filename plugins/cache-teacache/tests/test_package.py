"""The package as a host sees it before any session is built."""

from __future__ import annotations

import subprocess
import sys

import pytest

import wf_plugin_cache_teacache as plugin
from wf_core.api import BadInput, Facts, FeatureCache

KNOWN = Facts.of({"model.id": "wan2.1-t2v-1.3b"}, "test")


def test_importing_the_plugin_and_settling_a_request_does_not_load_torch():
    code = (
        "import sys, wf_plugin_cache_teacache\n"
        "from wf_core.api import Facts\n"
        "from wf_lib_teacache import settings\n"
        "facts = Facts.of({'model.id': 'wan2.1-t2v-1.3b'}, 'test')\n"
        "assert settings.settle({}, facts).threshold == 0.07\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_offers_its_two_hooks_and_nothing_else():
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, "wf_impl")}
    assert hooks == {"wf_feature_cache", "wf_calibrator"}


def test_hooks_give_a_cache_and_a_calibrator():
    cache = plugin.wf_feature_cache("teacache", {"threshold": 0.2}, KNOWN)
    assert isinstance(cache, FeatureCache)
    assert cache.settings.threshold == 0.2
    assert set(cache.handlers()) == set(plugin.wf_calibrator("teacache", {}, KNOWN).handlers()) == {"stack"}
    with pytest.raises(BadInput):
        plugin.wf_feature_cache("teacache", {}, Facts.of({"model.id": "unknown"}, "test"))
