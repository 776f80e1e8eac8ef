from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_vae_tiling" / "wf-plugin.toml")

TILES = MANIFEST.features[0]
COSMOS = {"model.family": "cosmos", "vae.class": "AutoencoderKLWan"}


def unmet(facts: dict[str, Any], **options: Any) -> set[str]:
    known = Facts.of(facts, "test")
    return {item.code for item in TILES.conditions if item.judge(known, options).state == "unmet"}


def test_it_is_declared() -> None:
    assert (TILES.name, TILES.tier, TILES.state) == ("vae-tiling", "approximate", "")
    assert TILES.families == ("hunyuan", "cosmos")
    assert TILES.seams == ("vae.decode",)
    assert [rule.effect.name for rule in TILES.effects] == ["bound-to-official-decoder"]


def test_cosmos_1_has_no_tiling() -> None:
    assert unmet({"model.family": "cosmos", "vae.class": "AutoencoderKLCosmos"}) == {"WF-V003"}
    assert unmet(COSMOS) == set()


@pytest.mark.parametrize(
    ("size", "stride", "codes"),
    [
        ((48, 48), (32, 32), set()),
        ((16, 48), (18, 16), {"WF-V005"}),
        ((16, 16), None, set()),
        (None, (32, 32), set()),
        (None, (32, 40), {"WF-V005"}),
    ],
)
def test_tiles_leave_no_gap(size: Any, stride: Any, codes: set[str]) -> None:
    assert unmet(COSMOS, tile_size=size, tile_stride=stride) == codes


def test_sizes_are_for_cosmos() -> None:
    hunyuan = {"model.family": "hunyuan", "vae.class": "AutoencoderKLHunyuanVideo"}
    assert unmet(hunyuan) == set()
    assert unmet(hunyuan, tile_size=(32, 32), tile_stride=(24, 24)) == {"WF-V004"}
    for size, stride in (((16, 16), None), ((16, 16), (24, 24)), (None, (40, 40))):
        assert unmet(hunyuan, tile_size=size, tile_stride=stride) == {"WF-V004"}


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (
            {"tile_size": (16, 48), "tile_stride": (18, 16)},
            "[18, 16] is above vae_tile_size in height or width",
        ),
        ({"tile_stride": (32, 40)}, "[32, 40] is above 32 in height or width"),
    ],
)
def test_the_refusal_compares_what_holds(options: dict[str, Any], says: str) -> None:
    verdicts = [item.judge(Facts.of(COSMOS, "test"), options) for item in TILES.conditions]
    [reason] = [verdict.reason for verdict in verdicts if verdict.state == "unmet"]
    assert reason.startswith(f"vae_tile_stride {says}")
