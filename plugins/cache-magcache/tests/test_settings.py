"""From a request to numbers: which ratios, which threshold, and what is refused."""

from __future__ import annotations

import json

import pytest
from magcache_vectors import facts

from wf_core.api import BadInput
from wf_plugin_cache_magcache.presets import catalogue, read_file
from wf_plugin_cache_magcache.settings import settle

OWN = {"ratios": (1.0, 0.99, 0.98)}


@pytest.fixture
def preset_file(tmp_path):
    """Writes a preset file; keywords change its one preset, a value of None takes the key away."""

    def write(**changes):
        record = {
            "id": "mine",
            "models": ["own-wan"],
            "ratios_cond": [1.0, 0.9, 0.8],
            "threshold": 0.07,
        } | changes
        record = {key: value for key, value in record.items() if value is not None}
        path = tmp_path / "own.json"
        path.write_text(json.dumps({"schema": 1, "feature": "magcache", "presets": [record]}))
        return str(path)

    return write


def test_given_ratios_serve_both_branches_with_the_defaults():
    found = settle(OWN, facts())
    assert found.cond == found.uncond == (1.0, 0.99, 0.98)
    assert (found.threshold, found.max_skip, found.retention_ratio) == (0.12, 2, 0.2)
    assert found.source == "the given ratios" and not found.lent and not found.force_last


def test_the_unconditional_branch_may_have_its_own():
    assert settle(OWN | {"ratios_uncond": (1.0, 0.9, 0.8)}, facts()).uncond == (1.0, 0.9, 0.8)


def test_the_preset_of_the_models_id_is_taken_with_its_threshold():
    found = settle({}, facts("wan2.1-t2v-1.3b"))
    assert (found.source, found.threshold, len(found.cond)) == ("preset wan2.1-t2v-1.3b", 0.12, 50)
    assert settle({}, facts("Wan2.1-VACE-1.3B")).threshold == 0.02
    assert settle({"threshold": 0.0}, facts("wan2.1-t2v-1.3b")).threshold == 0.0


def test_a_model_of_two_tasks_takes_the_pipelines():
    plain, image = {"pipeline__class": "WanPipeline"}, {"pipeline__class": "WanImageToVideoPipeline"}
    assert settle({}, facts("wan2.2-ti2v-5b", **plain)).source == "preset wan2.2-ti2v-5b.t2v"
    assert settle({}, facts("wan2.2-ti2v-5b", **image)).source == "preset wan2.2-ti2v-5b.i2v"
    asked = settle({"task": "t2v"}, facts("wan2.2-ti2v-5b", **image))
    assert asked.source == "preset wan2.2-ti2v-5b.t2v"


def test_the_first_of_two_experts_is_dense_for_image_to_video_alone():
    assert settle({}, facts("wan2.2-i2v-a14b")).dense_high_noise
    assert not settle({}, facts("wan2.2-t2v-a14b")).dense_high_noise
    assert settle(OWN, facts(pipeline__class="WanImageToVideoPipeline")).dense_high_noise
    assert not settle({"task": "t2v"}, facts("wan2.2-i2v-a14b")).dense_high_noise


def test_borrowed_ratios_need_to_be_allowed():
    with pytest.raises(
        BadInput, match=r"wan2.1-vace-14b has only the ratios of wan2.1-t2v-14b.*allow_uncalibrated"
    ):
        settle({}, facts("wan2.1-vace-14b"))
    allowed = settle({}, facts("wan2.1-vace-14b", request__allow_uncalibrated=True))
    assert "borrows" in allowed.lent and allowed.threshold == 0.12


def test_a_preset_of_another_model_needs_to_be_allowed():
    with pytest.raises(BadInput, match=r"measured on wan2.1-t2v-14b, this model is own-wan"):
        settle({"preset": "wan2.1-t2v-14b"}, facts())
    assert settle({"preset": "wan2.1-t2v-14b"}, facts(request__allow_uncalibrated=True)).lent


def test_a_file_is_a_preset(preset_file):
    found = settle({"preset": preset_file(max_skip=4, retention_ratio=0.1)}, facts())
    assert (found.cond, found.uncond) == ((1.0, 0.9, 0.8),) * 2
    assert (found.threshold, found.max_skip, found.retention_ratio) == (0.07, 4, 0.1)
    assert (found.source, found.lent) == ("preset mine of own.json", "")
    assert settle({"preset": preset_file(max_skip=4), "max_skip": 1}, facts()).max_skip == 1


def test_a_file_of_other_weights_is_refused(preset_file):
    path = preset_file(checkpoint="sha256:aaaa")
    with pytest.raises(BadInput, match="other weights"):
        settle({"preset": path}, facts(model__checkpoint_hash="sha256:bbbb"))
    assert not settle({"preset": path}, facts(model__checkpoint_hash="sha256:aaaa")).lent
    assert settle(
        {"preset": path}, facts(model__checkpoint_hash="sha256:bbbb", request__allow_uncalibrated=True)
    ).lent


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({**OWN, "preset": "wan2.1-t2v-14b"}, "ratios and preset"),
        ({"ratios_uncond": (1.0, 0.9)}, "belongs to given ratios"),
        ({"high_noise_steps": 3}, "belongs to given ratios"),
        ({}, "no ratios are known for model id 'own-wan'"),
        ({"preset": "not-there"}, "neither a file nor one of .*wan2.1-t2v-1.3b"),
        ({"ratios": (1.0,)}, "has 1 numbers"),
        ({"ratios": ()}, "has 0 numbers"),
        ({"ratios": (0.99, 0.98)}, "begins with 0.99, not with 1.0"),
        ({"ratios": (1.0, float("nan"))}, "not finite and above 0"),
        ({**OWN, "ratios_uncond": (1.0, 0.99)}, "3 numbers and ratios_uncond 2"),
        ({**OWN, "high_noise_steps": 3}, "leaves none of 3"),
    ],
)
def test_what_leads_to_no_ratios_is_refused_in_one_line(options, message):
    with pytest.raises(BadInput, match=message) as refused:
        settle(options, facts())
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "changes",
    [
        {"ratios_cond": None},
        {"ratios_cond": "many"},
        {"ratios_cond": [1.0, -1.0]},
        {"ratios_cond": [1.0, None]},
        {"threshold": -0.1},
        {"threshold": "wide"},
        {"max_skip": 0},
        {"retention_ratio": 1.5},
        {"high_noise_steps": -1},
        {"high_noise_steps": 3},
        {"task": "v2v"},
        {"models": None},
        {"id": None},
    ],
)
def test_a_damaged_file_is_refused_in_one_line(preset_file, changes):
    path = preset_file(**changes)
    with pytest.raises(BadInput, match=r"own\.json") as refused:
        read_file(path)
    assert "\n" not in str(refused.value)


def test_every_listed_model_is_one_that_its_preset_was_measured_on():
    shipped = catalogue()
    for model, row in shipped.calibrated.items():
        for task, name in row.items():
            assert model in shipped.presets[name].models
            if len({*row.values()}) > 1:
                assert shipped.presets[name].task == task


def test_the_presets_of_two_experts_say_where_they_change():
    """As many as the default schedule gives the first expert; there the ratio jumps."""
    for name, high in {"wan2.2-t2v-a14b": 26, "wan2.2-i2v-a14b": 15}.items():
        preset = catalogue().presets[name]
        assert preset.high_noise_steps == high
        assert min(preset.cond[: high + 5]) == preset.cond[high] < 0.92
