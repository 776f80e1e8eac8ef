"""From a request to a codebook: published, given, calibrated, and what is refused with which words."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import wf_plugin_cache_adacache as plugin
from wf_core.api import BadInput, Facts
from wf_plugin_cache_adacache import books
from wf_plugin_cache_adacache.rule import Codebook
from wf_plugin_cache_adacache.settings import settle

OWN = {
    "schema": 1,
    "feature": "adacache",
    "model": "own-wan",
    "checkpoint": "sha256:abc",
    "thresholds": [0.1, 0.5],
    "rates": [4, 2],
    "num_inference_steps": 30,
    "block": 1,
    "motion": True,
}


def facts(model="own-wan", **more):
    return Facts.of({"model.id": model, "model.layers": 4, **more}, "test")


@pytest.fixture
def preset(tmp_path):
    """``preset(**changes)``: the path of a preset file; a change to None takes the key out."""

    def write(**changes):
        path = tmp_path / "own.json"
        data = {key: value for key, value in {**OWN, **changes}.items() if value is not None}
        path.write_text(json.dumps(data))
        return str(path)

    return write


def test_the_published_book_is_the_default_of_a_model_that_none_was_measured_on():
    settings = settle({}, facts())
    assert (settings.book, settings.source) == (books.published()["fast"], "codebook fast")
    assert (settings.window.first, settings.window.last, settings.block) == (1, 1, 2)
    assert settings.motion == books.motion()
    assert settle({"codebook": "slow", "motion": False}, facts()).motion is None


def test_a_given_book_is_not_scaled():
    settings = settle({"thresholds": (0.1, 1.0), "rates": (3, 1)}, facts())
    assert settings.book == Codebook((0.1, 1.0), (3, 1), 0)
    for wrong in ({"thresholds": (0.2, 0.1), "rates": (3, 1)}, {"thresholds": (0.1,)}, {"rates": (3,)}):
        with pytest.raises(BadInput, match="codebook"):
            settle(wrong, facts())


def test_a_preset_file_is_used_with_what_it_was_measured_with(preset):
    settings = settle({"preset": preset(), "threshold": 0.2}, facts())
    assert settings.book == Codebook((0.1, 0.5), (4, 2), 30)
    assert (settings.block, settings.threshold, settings.lent) == (1, 0.2, "")
    still = settle({"preset": preset(motion=False), "motion": False}, facts())
    assert still.motion is None


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"block": 2}, "measured with block=1"),
        ({"motion": False}, "measured with motion=true"),
        ({"codebook": "fast"}, "codebook and preset both"),
        ({"thresholds": (0.1,), "rates": (2,)}, "thresholds and preset both"),
    ],
)
def test_a_preset_beside_something_else_is_refused(preset, options, words):
    with pytest.raises(BadInput, match=words):
        settle({"preset": preset(), **options}, facts())


def test_another_models_preset_is_refused_unless_it_is_allowed(preset):
    other = facts("other-wan")
    with pytest.raises(BadInput, match=r"own-wan.*other-wan.*allow_uncalibrated"):
        settle({"preset": preset()}, other)
    allowed = facts("other-wan", **{"request.allow_uncalibrated": True})
    assert "own-wan" in settle({"preset": preset()}, allowed).lent
    with pytest.raises(BadInput, match="other weights"):
        settle({"preset": preset()}, facts(**{"model.checkpoint_hash": "sha256:def"}))
    with pytest.raises(BadInput, match="block 9, this model has 4"):
        settle({"preset": preset(block=9)}, facts())


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"thresholds": None}, "lacks 'thresholds'"),
        ({"thresholds": "12"}, "are lists"),
        ({"rates": [4, 2.5]}, "whole numbers"),
        ({"rates": [4, True]}, "whole numbers"),
        ({"rates": [4]}, "as many rates"),
        ({"thresholds": [0.5, 0.1]}, "ascend"),
        ({"thresholds": [0.1, [0.5]]}, "cannot be used"),
        ({"num_inference_steps": -1}, "whole numbers"),
        ({"block": "1"}, "whole numbers"),
        ({"motion": 1}, "true or false"),
        ({"schema": 2}, "schema"),
        ({"feature": "teacache"}, "adacache preset"),
    ],
)
def test_a_malformed_preset_is_refused_in_one_line(preset, changes, words):
    with pytest.raises(BadInput, match=words) as error:
        settle({"preset": preset(**changes)}, facts())
    assert "\n" not in str(error.value)


def test_the_shipped_preset_is_named_by_its_id_and_is_of_its_checkpoint_alone():
    """It is not the default, not even on its own model: it was measured to be no better than the published book."""
    tiny = facts("tiny-wan", **{"model.layers": 10})
    checkpoint = books.calibrated()["tiny-wan"].checkpoint
    settings = settle(
        {"preset": "tiny-wan"}, tiny.with_({"model.checkpoint_hash": checkpoint}, source="test")
    )
    assert (settings.source, settings.book.steps, settings.lent) == ("preset tiny-wan", 30, "")
    assert settle({}, tiny).source == "codebook fast"
    other = tiny.with_({"model.checkpoint_hash": "sha256:other"}, source="test")
    with pytest.raises(BadInput, match="other weights"):
        settle({"preset": "tiny-wan"}, other)


def test_a_preset_that_is_nowhere_is_refused():
    with pytest.raises(BadInput, match="neither a file nor one of"):
        settle({"preset": "nowhere"}, facts())


def test_importing_the_plugin_and_settling_a_request_does_not_load_torch():
    code = (
        "import sys, wf_plugin_cache_adacache\n"
        "from wf_core.api import Facts\n"
        "from wf_plugin_cache_adacache import fit, settings\n"
        "facts = Facts.of({'model.id': 'wan2.1-t2v-1.3b', 'model.layers': 30}, 'test')\n"
        "assert settings.settle({}, facts).block == 15\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_package_offers_its_two_hooks_and_nothing_else():
    hooks = {name for name, value in vars(plugin).items() if hasattr(value, "wf_impl")}
    assert hooks == {"wf_feature_cache", "wf_calibrator"}
