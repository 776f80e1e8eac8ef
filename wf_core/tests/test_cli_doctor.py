"""What ``wf doctor`` says of features: whether they can run here, and what to install."""

from __future__ import annotations

import json
import os
import subprocess
import sys

from .conftest import Site
from .toy_features import GRAPH, NEEDS


def doctor(site: Site, *arguments: str, only: str, before: str = "") -> subprocess.CompletedProcess[str]:
    """``wf doctor`` in a fresh interpreter that has the test's plugins first on its path."""
    code = f"import sys\n{before}\nfrom wf_core.cli import main\nmain({['doctor', *arguments]!r})\n"
    path = os.pathsep.join([str(site.folder), *os.environ.get("PYTHONPATH", "").split(os.pathsep)])
    environment = {**os.environ, "PYTHONPATH": path, "WF_ONLY": only}
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )


def test_the_doctor_tells_what_to_install(site: Site) -> None:
    package = NEEDS.format(fact="package.no-such-kernel", test="present = true", reason="no kernel")
    old = NEEDS.format(fact="package.click", test='ge = "999"', reason="too old")
    device = NEEDS.format(fact="device.type", test='eq = "abacus"', reason="no abacus")
    site.cache("cache-a", feature="a", more=package + old)
    site.cache("cache-b", feature="b", more=device + package)
    site.cache("cache-c", feature="c")
    site.plugin("execution-graph", GRAPH)
    only = "cache-a,cache-b,cache-c,execution-graph"
    done = doctor(site, "--json", only=only)
    assert done.returncode == 0, done.stderr
    found = {item["name"]: item for item in json.loads(done.stdout)["features"]}
    assert found["a"]["here"] == "no"
    assert found["a"]["reason"] == "no kernel (it is none)"
    assert found["a"]["install"] == ["no-such-kernel", "click"]
    assert found["b"]["reason"].startswith("no abacus")
    assert found["b"]["install"] == []  # a package would not help
    assert (found["c"]["here"], found["c"]["install"]) == ("yes", [])
    assert (found["toy-graph"]["here"], found["toy-graph"]["reason"], found["toy-graph"]["install"]) == (
        "unavailable",
        "not implemented",
        [],
    )
    assert "no-such-kernel click" in doctor(site, only=only).stdout


def test_the_doctor_works_where_torch_is_not_installed(site: Site) -> None:
    site.cache("cache-a", feature="a")
    site.cache("cache-t", "import torch\n", feature="t")
    hide = (
        "sys.modules['torch'] = None\nimport wf_core.facts.process as p\nreal = p.installed_version\n"
        "p.installed_version = lambda name: None if name == 'torch' else real(name)\n"
    )
    done = doctor(site, "--json", only="cache-a,cache-t", before=hide)
    assert done.returncode == 0, done.stderr
    found = {item["name"]: item for item in json.loads(done.stdout)["features"]}
    assert (found["a"]["here"], found["a"]["reason"]) == ("no", "torch is not installed")
    assert found["a"]["install"] == ["torch"]
