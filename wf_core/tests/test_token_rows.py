"""Rows kept once for many tokens, and the tensor that they stand for."""

from __future__ import annotations

import pytest
import torch

from wf_core.api import TokenRows, dense


def test_dense_gives_each_token_its_row():
    values, index = torch.randn(2, 3, 6, 4), torch.tensor([[0, 2, 2, 1, 0], [1, 1, 0, 0, 2]])
    rows = TokenRows(values, index)
    assert (rows.shape, rows.ndim) == ((2, 5, 6, 4), 4)
    wanted = torch.stack([values[b][index[b]] for b in range(2)])
    assert torch.equal(dense(rows), wanted)
    assert torch.equal(dense(rows.map(lambda v: v.sum(2))), wanted.sum(2))
    tensor = torch.randn(2, 5)
    assert dense(tensor) is tensor


@pytest.mark.parametrize(("values", "index"), [((2, 4), (2, 5)), ((2, 3, 4), (5,)), ((2, 3, 4), (1, 5))])
def test_shapes_that_do_not_belong_together(values, index):
    with pytest.raises(ValueError, match="TokenRows"):
        TokenRows(torch.zeros(values), torch.zeros(index, dtype=torch.int64))
