"""The ``WORLDFOUNDRY_*`` variables: read for a host that was asked to, and only for keys that a request leaves open."""

from __future__ import annotations

from typing import Any

import pytest

from wf_core.errors import BadInput
from wf_core.host import Host
from wf_core.resolving.environment import VARIABLES, request_from_environment

from .conftest import Site

POLICY = "WORLDFOUNDRY_ATTENTION_BACKEND"
TF32 = "WORLDFOUNDRY_ENABLE_TF32"
PRECISION = "WORLDFOUNDRY_MATMUL_PRECISION"
DETERMINISTIC = "WORLDFOUNDRY_DETERMINISTIC"
COMPILE = "WORLDFOUNDRY_TORCH_COMPILE"


@pytest.mark.parametrize(
    ("name", "text", "request_"),
    [
        (POLICY, "efficient", {"attention_policy": "efficient"}),
        (POLICY, "Math", {"attention_policy": "math"}),
        (POLICY, "flash4", {"attention_policy": "auto"}),
        (POLICY, "sage2", {"attention_policy": "auto"}),
        (TF32, "1", {"enable_tf32": True}),
        (TF32, "0", {"enable_tf32": False}),
        (TF32, "true", {"enable_tf32": True}),
        (PRECISION, "HIGH", {"matmul_precision": "high"}),
        (DETERMINISTIC, "yes", {"deterministic": True}),
        (DETERMINISTIC, "off", {"deterministic": False}),
        (COMPILE, "1", {"compile": True}),
        (COMPILE, "0", {}),
        (TF32, "", {}),
        (TF32, "  ", {}),
    ],
)
def test_what_each_variable_stands_for(name: str, text: str, request_: dict[str, Any]) -> None:
    assert request_from_environment({name: text}, {}) == request_


def test_every_variable_is_tried_above() -> None:
    assert {variable.name for variable in VARIABLES} == {POLICY, TF32, PRECISION, DETERMINISTIC, COMPILE}


@pytest.mark.parametrize(
    ("name", "text", "request_"),
    [
        (POLICY, "math", {"attention_policy": "flash"}),
        (POLICY, "math", {"attention-policy": "flash"}),
        (TF32, "1", {"enable_tf32": False}),
        (PRECISION, "high", {"matmul-precision": "highest"}),
        (DETERMINISTIC, "1", {"deterministic": "inherit"}),
        (COMPILE, "1", {"compile": False}),
        (COMPILE, "1", {"compile.mode": "default"}),
    ],
)
def test_a_key_of_the_request_wins(name: str, text: str, request_: dict[str, Any]) -> None:
    assert request_from_environment({name: text}, request_) == request_


def test_a_kernels_name_says_nothing_where_a_backend_is_asked_for() -> None:
    request = {"attention-backend": "math"}
    assert request_from_environment({POLICY: "flash4"}, request) == request
    assert request_from_environment({POLICY: "math"}, request) == {**request, "attention_policy": "math"}


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        (TF32, "2", "expects true or false, got 2"),
        (DETERMINISTIC, "maybe", "expects true or false, got maybe"),
        (COMPILE, "inductor", "expects true or false, got inductor"),
        (PRECISION, "hi", "expects one of highest, high, medium, got hi; did you mean high?"),
    ],
)
def test_a_bad_value_is_one_line_that_names_the_variable(name: str, text: str, words: str) -> None:
    with pytest.raises(BadInput) as caught:
        request_from_environment({name: text}, {})
    assert str(caught.value) == f"{name}: {words}"


def test_the_request_is_not_written_to() -> None:
    request: dict[str, Any] = {}
    request_from_environment({TF32: "1"}, request)
    assert request == {}


# --- hosts ----------------------------------------------------------------------------------------------------------

NUMERICS = """
schema = 1
name = "numerics"
api = 1
kind = "execution-mode"
[[feature]]
name = "tf32"
tier = "exact"
evidence = [{ counter = "calls", at_least = 1 }]
[[feature.option]]
name = "enabled"
type = "bool"
[[switch]]
name = "enable_tf32"
feature = "tf32"
aliases = ["allow_tf32"]
form = "value"
option = "enabled"
"""


@pytest.fixture
def numerics(site: Site, monkeypatch: pytest.MonkeyPatch) -> Site:
    site.family()
    site.plugin("numerics", NUMERICS)
    monkeypatch.setenv(TF32, "1")
    return site


def features(host: Host, **request: Any) -> dict[str, Any]:
    plan = host.resolve("mine", request, family="toy")
    return {feature.name: feature.option("enabled") for feature in plan.features}


def test_a_host_reads_them_only_when_it_is_asked_to(numerics: Site) -> None:
    path = [str(numerics.folder)]
    assert features(Host.discover(path)) == {}
    host = Host.discover(path, env=True)
    assert features(host) == {"tf32": True}
    assert features(host, enable_tf32=False) == {"tf32": False}
    assert features(host, allow_tf32=False) == {"tf32": False}, "by an alias too"


def test_they_are_read_once_when_the_host_is_made(numerics: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    host = Host.discover([str(numerics.folder)], env=True)
    monkeypatch.setenv(TF32, "0")
    assert features(host) == {"tf32": True}


def test_what_they_ask_for_is_in_the_plan_as_if_it_had_been_typed(numerics: Site) -> None:
    host = Host.discover([str(numerics.folder)], env=True)
    assert host.resolve("mine", {}, family="toy").request_dict() == {"enable_tf32": True}


def test_a_bad_value_stops_the_resolving_and_not_the_host(
    numerics: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TF32, "perhaps")
    host = Host.discover([str(numerics.folder)], env=True)
    with pytest.raises(BadInput, match=f"^{TF32}: expects true or false, got perhaps$"):
        host.resolve("mine", {}, family="toy")
