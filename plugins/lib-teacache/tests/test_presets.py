"""The shipped numbers are the published ones, and the manifest knows the same models."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

import pytest
from teacache_vectors import coefficients, vector

import wf_lib_teacache
from wf_core.api import BadInput, Facts
from wf_core.testing import Manifest
from wf_lib_teacache.presets import SIGNALS, catalogue, read_file
from wf_lib_teacache.rule import polynomial
from wf_lib_teacache.settings import BY_BLOCK, settle

HERE = Path(wf_lib_teacache.__file__).parent
PLUGINS = Path(__file__).parents[2]
MANIFESTS = [
    PLUGINS / f"cache-{name}" / "src" / f"wf_plugin_cache_{name}" / "wf-plugin.toml"
    for name in ("teacache", "custom")
]
DATA = json.loads((HERE / "presets.json").read_text())
RECORDS = {record["id"]: record for record in DATA["presets"]}
FIELDS = (
    "signal",
    "coefficients",
    "first",
    "last",
    "recommended_thresholds",
    "aliases",
    "sources",
    "confidence",
    "num_inference_steps",
    "flow_shift",
)
# First 16 digits of the SHA-256 over the fields above, as collected from the cited sources.
DIGESTS = {
    "wan2.1-t2v-1.3b.e": "b2a513fdbc857dc5",
    "wan2.1-t2v-1.3b.e0": "356493b41b442439",
    "wan2.1-t2v-14b.e": "29a3073a9ae9d6b8",
    "wan2.1-t2v-14b.e0": "72c99e2d76f09d19",
    "wan2.1-i2v-14b-480p.e": "8b004b96df26e129",
    "wan2.1-i2v-14b-480p.e0": "119785b6f6d85ab6",
    "wan2.1-i2v-14b-720p.e": "6a545068035d672d",
    "wan2.1-i2v-14b-720p.e0": "f870e99bbf962c78",
    "wan2.2-ti2v-5b.e.lightx2v": "2ad92511415c6804",
    "hunyuanvideo.block0": "4f7758004e796333",
    "cosmos-1.0-diffusion-7b.block0": "3fa908b703477eff",
    "hunyuanvideo-1.5-t2v-480p.block0": "485f9f119fa9bdce",
    "hunyuanvideo-1.5-t2v-720p.block0": "43925d37645d22a4",
    "hunyuanvideo-1.5-i2v-480p.block0": "44c28204ac54554b",
    "hunyuanvideo-1.5-i2v-720p.block0": "23c6f2535e775620",
}
IN_THE_VECTORS = {
    "hunyuanvideo.block0": "hunyuanvideo",
    "cosmos-1.0-diffusion-7b.block0": "cosmos-1.0-diffusion-7b",
    "hunyuanvideo-1.5-t2v-480p.block0": "hunyuanvideo-1.5.t2v_480p",
    "hunyuanvideo-1.5-t2v-720p.block0": "hunyuanvideo-1.5.t2v_720p",
    "hunyuanvideo-1.5-i2v-480p.block0": "hunyuanvideo-1.5.i2v_480p",
    "hunyuanvideo-1.5-i2v-720p.block0": "hunyuanvideo-1.5.i2v_720p",
}
"""Names of presets in the vectors, where these have others."""


def digest(record):
    text = json.dumps([record[name] for name in FIELDS], sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def test_every_published_preset_of_the_families_is_shipped_unchanged():
    assert {name: digest(record) for name, record in RECORDS.items()} == DIGESTS


@pytest.mark.parametrize("name", DIGESTS)
def test_shipped_polynomials_have_the_vectors_values(name):
    case, known = vector("tea.poly"), IN_THE_VECTORS.get(name, name)
    preset = catalogue().presets[name]
    assert preset.coefficients == coefficients(known)
    found = [polynomial(preset.coefficients, d) for d in case["inputs"]["d"]]
    assert found == pytest.approx(case["expected"][known], abs=case["tolerance"])


@pytest.mark.parametrize("name", DIGESTS)
def test_default_threshold_is_one_that_its_source_recommends(name):
    recommended = []
    for value in RECORDS[name]["recommended_thresholds"].values():
        recommended += value if isinstance(value, list) else [value]
    assert RECORDS[name]["threshold"] in recommended
    assert RECORDS[name]["threshold"] < 0.26 or name in (
        "wan2.2-ti2v-5b.e.lightx2v",
        "cosmos-1.0-diffusion-7b.block0",
    )


def test_borrowed_presets_exist_and_are_nobodys_own():
    for model, row in DATA["borrowed"].items():
        for signal, loan in row.items():
            lent = RECORDS[loan["preset"]]
            assert lent["signal"] == signal
            assert model not in lent["models"]
            assert signal not in DATA["fitted"].get(model, {})


def test_fitted_models_are_those_that_their_presets_name():
    shipped = catalogue()
    for model, row in shipped.fitted.items():
        for signal, preset in row.items():
            assert (model in preset.models, preset.signal) == (True, signal)
    listed = {model for preset in shipped.presets.values() for model in preset.models}
    assert listed == set(shipped.fitted), "a calibrated file needs its row in presets.json under fitted"


def test_the_manifests_tables_name_the_models_that_code_knows():
    shipped = catalogue()
    known = {"fitted": set(shipped.fitted), "borrowed": set(shipped.borrowed)}
    for signal in SIGNALS:
        rows = (*shipped.fitted.items(), *shipped.borrowed.items())
        known[f"with_{signal}"] = {model for model, row in rows if signal in row}
    assert all(known.values())
    for manifest in MANIFESTS:
        tables = Manifest.load(manifest).tables
        assert {name: set(keys) for name, keys in tables.items()} == known, manifest


@pytest.mark.parametrize("path", MANIFESTS, ids=["teacache", "custom"])
def test_the_manifests_know_the_families_that_are_judged_by_the_first_block(path):
    manifest = Manifest.load(path)
    (feature,) = manifest.features
    text = path.read_text()
    for families in re.findall(r'"model.family", in = (\[.*?\])', text):
        assert tuple(json.loads(families)) == BY_BLOCK
    assert set(re.findall(r'"model.family", ne = "(.*?)"', text)) == {*BY_BLOCK}

    def of(family, rules, options):
        known = Facts.of({"model.family": family, "pipeline.class": "SomePipeline"}, "test")
        return [rule.judge(known, options, manifest.tables).state == "met" for rule in rules]

    inside = [rule.when for rule in feature.effects if rule.effect.seam == "norm_modulate"]
    outside = [rule.when for rule in feature.effects if str(rule.effect) == "rank-uniform-decision"]
    signals = [rule for rule in feature.conditions if "first block's modulated input" in rule.reason]
    assert inside and outside and len(signals) == 2
    for family in (*BY_BLOCK, "wan", "another"):
        by_block = family in BY_BLOCK
        assert {*of(family, inside, {})} == {by_block} != {*of(family, outside, {})}
        assert all(of(family, signals, {"signal": "block0"})) == by_block
        for signal in ("e", "e0"):
            assert all(of(family, signals, {"signal": signal})) != by_block
        assert all(of(family, signals, {})), "what is not said is the family's own"


def test_the_signal_that_a_goal_names_is_the_one_that_is_taken_by_default():
    """`goal=fast` asks for signal e, so that it chooses no model that is judged by another."""
    (feature,) = Manifest.load(MANIFESTS[0]).features
    (goal,) = feature.goals
    assert dict(goal.set)["teacache"]["signal"] == "e"
    fitted = {model: row for model, row in catalogue().fitted.items() if "block0" not in row}
    for model in fitted:
        known = Facts.of({"model.id": model, "model.family": "wan"}, "test")
        assert settle({}, known) == settle({"signal": "e"}, known), model


GOOD = {
    "id": "own.e",
    "models": ["Own"],
    "signal": "e",
    "coefficients": [1.0, 0.5],
    "first": 1,
    "last": 1,
    "threshold": 0.2,
    "confidence": "calibrated",
    "sources": ["here"],
    "fit": {"r2": 0.9, "domain": [0.01, 0.2]},
}


def write(path: Path, **changes) -> Path:
    record = {**GOOD, **changes}
    path.write_text(json.dumps({"schema": 1, "feature": "teacache", "signal": "e", "presets": [record]}))
    return path


def test_a_preset_file_is_read(tmp_path):
    file = read_file(write(tmp_path / "own.json"))
    preset = file.presets["e"]
    assert (file.signal, preset.coefficients, preset.models) == ("e", (1.0, 0.5), ("own",))
    assert (preset.r2, preset.domain) == (0.9, (0.01, 0.2))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"coefficients": []}, "finite numbers"),
        ({"coefficients": [1.0, float("nan")]}, "finite numbers"),
        ({"coefficients": ["x"]}, "could not convert"),
        ({"signal": "e7"}, "not one of e, e0"),
        ({"signal": "e0"}, "no preset for its own signal"),
        ({"threshold": 0}, "above 0"),
        ({"threshold": float("inf")}, "above 0"),
        ({"models": 3}, "not iterable"),
        ({"fit": {"r2": float("nan")}}, "no finite number"),
        ({"fit": {"r2": "high"}}, "no finite number"),
        ({"fit": {"domain": [0.1, float("inf")]}}, "no finite number"),
        ({"fit": {"domain": [0.2, 0.1]}}, "below its begin"),
        ({"fit": {"domain": [0.1]}}, "not enough values"),
    ],
)
def test_a_preset_file_that_is_wrong_is_one_line(tmp_path, changes, message):
    path = write(tmp_path / "own.json", **changes)
    with pytest.raises(BadInput, match=message) as error:
        read_file(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "text",
    ["{", "[]", '{"schema": 1}', '{"schema": 2, "feature": "teacache"}', '{"schema": 1, "feature": "x"}'],
)
def test_a_file_that_is_no_preset_is_named(tmp_path, text):
    path = tmp_path / "other.json"
    path.write_text(text)
    with pytest.raises(BadInput, match=r"other\.json"):
        read_file(path)


def test_a_file_that_lacks_a_field_says_which(tmp_path):
    path = tmp_path / "own.json"
    record = {name: value for name, value in GOOD.items() if name != "first"}
    path.write_text(json.dumps({"schema": 1, "feature": "teacache", "signal": "e", "presets": [record]}))
    with pytest.raises(BadInput, match="it lacks 'first'"):
        read_file(path)
