"""Which polynomial a request leads to, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from wf_core.api import BadInput, Facts
from wf_lib_teacache import presets
from wf_lib_teacache.presets import catalogue
from wf_lib_teacache.settings import settle

OWN = {"coefficients": (1.0, 0.0)}


def facts(model="wan2.1-t2v-1.3b", **more):
    return Facts.of({"model.id": model, **more}, "test")


def allowed(model):
    return facts(model, **{"request.allow_uncalibrated": True})


@pytest.mark.parametrize(
    ("model", "preset", "threshold"),
    [
        ("wan2.1-t2v-1.3b", "wan2.1-t2v-1.3b.e", 0.07),
        ("wan2.1-t2v-14b", "wan2.1-t2v-14b.e", 0.15),
        ("wan2.1-i2v-14b-480p", "wan2.1-i2v-14b-480p.e", 0.19),
        ("wan2.1-i2v-14b-720p", "wan2.1-i2v-14b-720p.e", 0.2),
        ("wan2.2-ti2v-5b", "wan2.2-ti2v-5b.e.lightx2v", 0.26),
        ("Wan2.1-T2V-1.3B", "wan2.1-t2v-1.3b.e", 0.07),
        ("tiny-wan", "tiny-wan.e", 0.117),
    ],
)
def test_a_model_gets_its_own_fit_on_e_with_its_own_threshold(model, preset, threshold):
    found = settle({}, facts(model))
    assert found.source == f"preset {preset}"
    assert found.coefficients == catalogue().presets[preset].coefficients
    assert (found.threshold, found.signal, found.first, found.last, found.lent) == (threshold, "e", 1, 1, "")


def test_signal_e0_takes_the_other_fit_with_its_retained_steps():
    found = settle({"signal": "e0"}, facts())
    assert found.source == "preset wan2.1-t2v-1.3b.e0"
    assert (found.threshold, found.signal, found.first, found.last) == (0.05, "e0", 5, 0)


def test_e_is_taken_also_where_the_calibration_fitted_e0_better():
    """The calibrated file names the signal with the higher R^2, which is what preset=FILE goes by, and nothing else."""
    path = Path(presets.__file__).with_name("calibrated") / "tiny-wan.json"
    assert presets.read_file(path).signal == "e0"
    assert settle({}, facts("tiny-wan")).signal == "e"
    assert settle({"preset": str(path)}, facts("tiny-wan")).signal == "e0"
    found = settle({"signal": "e0"}, facts("tiny-wan"))
    assert (found.source, found.threshold, found.first, found.last) == ("preset tiny-wan.e0", 0.0953, 5, 0)


def test_given_options_win_and_zero_is_a_value():
    options = {"threshold": 0.3, "first": 0, "last": 0, "max_skip": 2}
    found = settle(options, facts())
    assert (found.threshold, found.first, found.last, found.max_skip) == (0.3, 0, 0, 2)


@pytest.mark.parametrize(("signal", "first", "last"), [(None, 1, 1), ("e", 1, 1), ("e0", 5, 0)])
def test_own_coefficients_work_on_any_model(signal, first, last):
    found = settle({**OWN, "signal": signal}, facts("my-own-wan-finetune"))
    assert (found.coefficients, found.threshold, found.source) == ((1.0, 0.0), 0.26, "the given coefficients")
    assert (found.signal, found.first, found.last) == (signal or "e", first, last)


@pytest.mark.parametrize("known", [facts("my-own-wan-finetune"), facts(""), Facts()])
def test_an_unknown_model_is_refused_with_what_to_give(known):
    with pytest.raises(BadInput, match=r"no preset is known .*give coefficients.*preset=FILE"):
        settle({}, known)
    with pytest.raises(BadInput, match="no preset is known"):
        settle({}, known.with_({"request.allow_uncalibrated": True}, source="test"))


@pytest.mark.parametrize("model", ["wan2.2-t2v-a14b", "wan2.1-vace-14b", "wan2.1-fun-1.3b-inp"])
def test_a_borrowed_preset_needs_allow_uncalibrated(model):
    with pytest.raises(BadInput, match=r"borrows without a fit.*allow_uncalibrated=true"):
        settle({}, facts(model))
    for value in (False, None, "true", 1):
        with pytest.raises(BadInput):
            settle({}, facts(model, **{"request.allow_uncalibrated": value}))
    found = settle({}, allowed(model))
    assert "borrows" in found.lent
    assert (found.signal, found.first, found.last) == ("e0", 5, 0)
    lent = "wan2.1-t2v-1.3b.e0" if "1.3b" in model else "wan2.1-i2v-14b-720p.e0"
    assert found.coefficients == catalogue().presets[lent].coefficients


def test_a_borrower_has_its_own_threshold():
    thresholds = {"wan2.2-t2v-a14b": 0.1, "wan2.2-i2v-a14b": 0.15, "wan2.1-fun-14b": 0.2}
    assert {model: settle({}, allowed(model)).threshold for model in thresholds} == thresholds


def test_ti2v_has_a_fit_on_e_and_borrows_on_e0():
    assert settle({}, facts("wan2.2-ti2v-5b")).lent == ""
    with pytest.raises(BadInput, match="allow_uncalibrated"):
        settle({"signal": "e0"}, facts("wan2.2-ti2v-5b"))
    assert settle({"signal": "e0"}, allowed("wan2.2-ti2v-5b")).first == 5


def test_a_signal_that_the_model_has_no_preset_for_is_refused():
    with pytest.raises(BadInput, match="no preset for signal e, only for e0"):
        settle({"signal": "e"}, allowed("wan2.1-vace-14b"))


def test_a_preset_may_be_named_by_its_id():
    assert settle({"preset": "wan2.1-t2v-1.3b.e0"}, facts()).signal == "e0"
    with pytest.raises(BadInput, match=r"fitted on signal e0 and says nothing about e;"):
        settle({"preset": "wan2.1-t2v-1.3b.e0", "signal": "e"}, facts())
    with pytest.raises(
        BadInput, match=r"measured on wan2.1-t2v-1.3b, this model is my-finetune.*allow_uncalibrated"
    ):
        settle({"preset": "wan2.1-t2v-1.3b.e"}, facts("my-finetune"))
    assert settle({"preset": "wan2.1-t2v-1.3b.e"}, allowed("my-finetune")).lent
    with pytest.raises(BadInput, match="this model is of unknown id"):
        settle({"preset": "wan2.1-t2v-1.3b.e"}, Facts())


@pytest.fixture
def preset_file(tmp_path):
    record = {
        "models": ["mine"],
        "first": 1,
        "last": 1,
        "threshold": None,
        "confidence": "calibrated",
        "sources": ["here"],
        "checkpoint": "abc",
    }
    records = [
        {**record, "id": "mine.e", "signal": "e", "coefficients": [2.0, 0.0]},
        {**record, "id": "mine.e0", "signal": "e0", "coefficients": [3.0, 0.0], "threshold": 0.4},
    ]
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"schema": 1, "feature": "teacache", "signal": "e0", "presets": records}))
    return str(path)


def test_a_preset_file_gives_its_better_signal_unless_told_otherwise(preset_file):
    found = settle({"preset": preset_file}, facts("mine"))
    assert (found.coefficients, found.signal, found.threshold) == ((3.0, 0.0), "e0", 0.4)
    found = settle({"preset": preset_file, "signal": "e"}, facts("mine"))
    assert (found.coefficients, found.signal, found.threshold) == ((2.0, 0.0), "e", 0.26)


def test_a_preset_file_of_other_weights_needs_allow_uncalibrated(preset_file):
    unknown = facts("mine")
    assert settle({"preset": preset_file}, unknown).lent == "", "weights of unknown hash are not compared"
    same = facts("mine", **{"model.checkpoint_hash": "abc"})
    other = facts("mine", **{"model.checkpoint_hash": "xyz"})
    assert settle({"preset": preset_file}, same).lent == ""
    with pytest.raises(BadInput, match=r"other weights \(abc, these are xyz\)"):
        settle({"preset": preset_file}, other)
    with pytest.raises(BadInput, match="measured on mine, this model is yours"):
        settle({"preset": preset_file}, facts("yours"))
    assert (
        "other weights" in settle({"preset": preset_file}, other.with_(request__allow_uncalibrated=True)).lent
    )


def test_a_preset_that_is_nothing_known_is_refused_with_the_names():
    with pytest.raises(BadInput, match=r"neither a file nor one of .*wan2.1-t2v-1.3b.e"):
        settle({"preset": "no/such/file.json"}, facts())


def test_two_polynomials_or_none_are_refused():
    with pytest.raises(BadInput, match="give one of them"):
        settle({**OWN, "preset": "wan2.1-t2v-1.3b.e"}, facts())
    with pytest.raises(BadInput, match="empty list"):
        settle({"coefficients": ()}, facts())
