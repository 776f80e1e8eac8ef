"""``wf verify attention``: torch's own backends hold, a backend that is wrong ends the command with its line."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest
from click.testing import CliRunner, Result

from support.plugins import write_plugin
from wf_core.cli import main

WRONG = """
kind = "attention-provider"
[[feature]]
name = "wrong-scale"
tier = "equivalent"
tolerance = "none: it is wrong"
slot = "attention"
seams = ["attention"]
evidence = [{ counter = "successes", at_least = 1 }]
select = [{ switch = "attention_backend", values = ["wrong_scale"] }]
example = { attention_backend = "wrong_scale" }
"""
CODE = """
from wf_core.api import hookimpl

@hookimpl
def wf_attention_provider(feature, options, facts):
    import torch.nn.functional as F
    from wf_core.api import AttentionProvider

    class Wrong(AttentionProvider):
        def attend(self, query, key, value, mask):
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            return F.scaled_dot_product_attention(q, k, v, mask, scale=1.0, enable_gqa=True).transpose(1, 2)

    return Wrong()
"""


def wf(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["verify", "attention", *arguments], catch_exceptions=False)


def test_the_backends_of_torch_that_run_here_keep_their_bounds() -> None:
    done = wf("--device", "cpu", "--inputs", "10", "--json", *(f"--backend={n}" for n in BACKENDS))
    assert done.exit_code == 0, done.stderr
    found = json.loads(done.stdout)
    ran = {(f["feature"], f["dtype"]): f for f in found["findings"]}
    assert {*ran} == {(name, dtype) for name in BACKENDS for dtype in ("float32", "bfloat16", "float16")}
    assert {f["verdict"] for f in ran.values()} == {"ok"}
    assert all(f["inputs"] == 10 and f["ineligible"] == {} for f in ran.values())
    assert ran["math", "float32"]["limits"] == ["relative-l2 at most 1e-05 (its manifest)"]


BACKENDS = ("sdpa", "math", "torch-flash", "flex")


def test_the_table_shows_what_cannot_run_with_its_reason() -> None:
    done = wf("--device", "cpu", "--inputs", "1", "--dtype", "float32")
    assert done.exit_code == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["sdpa", "float32", "exact", "ok"] in [row[:4] for row in rows]
    assert ["cudnn", "-", "equivalent", "unavailable"] in [row[:4] for row in rows]
    assert "cuDNN attention runs on CUDA devices only" in " ".join(done.stdout.split())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["--backend", "cudn"], "no attention backend 'cudn'; did you mean cudnn"),
        (["--device", "abacus"], "device 'abacus' is none that a clip is made on"),
        (["--device", "cuda:99"], "torch sees"),
        (["--dtype", "int8"], "'int8' is not one of"),
        (["--inputs", "0"], "0 is not in the range"),
        (
            ["--backend", "cudnn", "--device", "cpu"],
            "nothing was verified: cudnn: cuDNN attention runs on CUDA",
        ),
    ],
)
def test_bad_input_ends_with_one_line(arguments: list[str], line: str) -> None:
    done = wf(*arguments)
    assert done.exit_code == 2
    assert len(done.stderr.splitlines()) == 1 and done.stderr.startswith("wf: ")
    assert line in done.stderr


def test_a_backend_that_is_wrong_ends_with_2_and_its_line(host_with: Callable[..., object]) -> None:
    host_with(lambda root: write_plugin(root, "attention-wrong", WRONG, CODE))
    done = wf("--backend", "wrong_scale", "--device", "cpu", "--inputs", "3", "--dtype", "float32", "--json")
    assert done.exit_code == 2
    assert done.stderr.startswith("wf: wrong-scale in float32: relative-l2 ")
    assert "at B1 Lq257 Lk257 H12 D64" in done.stderr
    [finding] = json.loads(done.stdout)["findings"]
    assert (finding["verdict"], finding["plugin"]) == ("exceeds", "attention-wrong")
