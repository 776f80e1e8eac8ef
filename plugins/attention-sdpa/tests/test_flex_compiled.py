"""The compiled form of flex, traced on the CPU without a code generator: same numbers, one graph, no limit."""

from __future__ import annotations

import pytest
import torch

from wf_plugin_attention_sdpa import flex


@pytest.mark.parametrize("masked", [False, True], ids=["dense", "masked"])
def test_traces_as_one_graph(masked, inputs, reference, relative_error):
    q, k, v = inputs(heads=4, key_heads=2, size=16)
    mask = torch.rand(2, 1, 1, 17, generator=torch.Generator().manual_seed(3)) > 0.4 if masked else None
    kernel = flex.compiled(("test", masked), "eager", masked)
    with torch.no_grad():
        out = flex._run(kernel, q, k, v, mask)
    assert relative_error(out, reference(q, k, v, mask)) <= 1e-5


def test_many_sizes_do_not_meet_dynamos_limit(inputs, reference, relative_error):
    """With one code object for all, the third size here would raise."""
    with torch._dynamo.config.patch(recompile_limit=1), torch.no_grad():
        for length in (5, 6, 7):
            q, k, v = inputs(lq=length, size=16)
            kernel = flex.compiled(("limit", length), "eager", False)
            assert relative_error(flex._run(kernel, q, k, v, None), reference(q, k, v)) <= 1e-5
