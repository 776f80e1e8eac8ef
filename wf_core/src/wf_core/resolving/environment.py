"""The ``WORLDFOUNDRY_*`` variables as keys of a request. They are read only for a host that was asked to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import attrs

from wf_core.errors import BadInput
from wf_core.manifests.options import BadValue, OptionDecl
from wf_core.names import switch_key
from wf_core.resolving.request_keys import check_mapping

POLICIES = ("auto", "flash", "cudnn", "efficient", "math")
PRECISIONS = ("highest", "high", "medium")


@attrs.frozen
class Variable:
    """A variable, and the request that a value of it stands for."""

    name: str
    read: Callable[[str], Mapping[str, Any]]


def request_from_environment(
    environ: Mapping[str, str], request: Mapping[str, Any], canonical: Callable[[str], str] = str
) -> dict[str, Any]:
    """The request with what the environment says of keys that it does not give, by name or by an alias.

    ``canonical`` gives a key's own name for an alias of it. A kernel's name in the policy variable means ``auto``,
    unless the request pins a backend: then it says nothing. Raises `BadInput` naming a variable whose value is none of
    its own, and for a request that is no mapping.
    """
    check_mapping(request)
    given = {canonical(switch_key(str(key)).partition(".")[0]) for key in request}
    found: dict[str, Any] = {}
    for variable in VARIABLES:
        text = environ.get(variable.name, "").strip()
        if not text:
            continue
        try:
            found.update(variable.read(text))
        except BadValue as error:
            raise BadInput(f"{variable.name}: {error.problem}") from None
    if found.get("attention_policy") not in (None, *POLICIES):
        found["attention_policy"] = "auto"
        if "attention_backend" in given:
            del found["attention_policy"]
    return {**{key: value for key, value in found.items() if key not in given}, **request}


def _policy(text: str) -> dict[str, Any]:
    return {"attention_policy": text.lower()}


def _flag(key: str) -> Callable[[str], dict[str, Any]]:
    def read(text: str) -> dict[str, Any]:
        words = {"1": "true", "0": "false"}
        return {key: OptionDecl(key, "bool").convert(words.get(text, text), key)}

    return read


def _precision(text: str) -> dict[str, Any]:
    return {
        "matmul_precision": OptionDecl("matmul_precision", "choice", choices=PRECISIONS).convert(text, "")
    }


def _compile(text: str) -> dict[str, Any]:
    return {"compile": True} if _flag("compile")(text)["compile"] else {}


VARIABLES = (
    Variable("WORLDFOUNDRY_ATTENTION_BACKEND", _policy),
    Variable("WORLDFOUNDRY_ENABLE_TF32", _flag("enable_tf32")),
    Variable("WORLDFOUNDRY_MATMUL_PRECISION", _precision),
    Variable("WORLDFOUNDRY_DETERMINISTIC", _flag("deterministic")),
    Variable("WORLDFOUNDRY_TORCH_COMPILE", _compile),
)
