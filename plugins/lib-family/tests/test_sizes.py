"""Sizes that do not fit name the nearest that do."""

from __future__ import annotations

from typing import Any

import pytest

from wf_lib_family.sizes import frame_problems, side_problems


@pytest.mark.parametrize(
    ("value", "nearest"), [(40, "32 and 48"), (8, "16 and 32"), (0, None), (16.0, None), (True, None)]
)
def test_a_side_off_the_grid(value: Any, nearest: str | None) -> None:
    (problem,) = side_problems("height", value, 8, 2)
    if nearest is None:
        assert problem == f"height must be a whole number of pixels of at least 16, got {value!r}."
    else:
        assert problem.endswith(f"(VAE factor 8 x patch 2); the nearest legal values are {nearest}.")


def test_the_pipelines_own_multiple_is_named_where_it_is_the_larger() -> None:
    assert side_problems("width", 48, 8, 2, 16) == side_problems("width", 40, 8, 1) == []
    (problem,) = side_problems("width", 40, 8, 1, 16)
    assert "multiple of 16 (VAE factor 8 x patch 1, and the pipeline asks for multiples of 16)" in problem


@pytest.mark.parametrize(("value", "nearest"), [(8, "5 and 9"), (0, "1 and 5"), (-3, "1 and 5"), (2.0, None)])
def test_frames_off_the_grid(value: Any, nearest: str | None) -> None:
    (problem,) = frame_problems(value, 4)
    assert "of the form 4k + 1" in problem
    assert problem.endswith(f"the nearest legal values are {nearest}." if nearest else "got 2.0.")


def test_what_fits_has_no_problem() -> None:
    assert [frame_problems(frames, 4) for frames in (1, 5, 129)] == [[], [], []]
