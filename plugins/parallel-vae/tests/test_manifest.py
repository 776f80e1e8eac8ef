from __future__ import annotations

from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import Manifest

MANIFEST = Manifest.load(Path(__file__).parents[1] / "src" / "wf_plugin_parallel_vae" / "wf-plugin.toml")

DECODE = MANIFEST.features[0]


def unmet(world: int, degree: int | None, group: bool = True) -> set[str]:
    known = Facts.of({"process.world": world, "process.group_initialised": group}, "test")
    return {c.code for c in DECODE.conditions if c.judge(known, {"degree": degree}).state == "unmet"}


def leaves_ranks_out(world: int, degree: int | None) -> bool:
    (when,) = [rule.when for rule in DECODE.effects if rule.effect.name == "uses-part-of-world"]
    assert when is not None
    return when.judge(Facts.of({"process.world": world}, "test"), {"degree": degree}).state == "met"


def test_it_is_declared_and_cannot_be_activated() -> None:
    assert (DECODE.name, DECODE.tier, DECODE.state) == (
        "vae-parallel",
        "approximate",
        "unavailable: not implemented",
    )
    effects = {str(rule.effect) for rule in DECODE.effects}
    assert {"splits-decode@vae.decode", "bound-to-official-decoder", "collectives@vae.decode"} <= effects


def test_true_and_a_number_both_turn_it_on() -> None:
    switch = MANIFEST.switches[0]
    assert (switch.name, switch.form, switch.shorthand) == ("vae_parallel", "feature", "degree")


def test_it_needs_other_ranks() -> None:
    assert unmet(1, None, group=False) == {"WF-X007", "WF-X008"}
    assert unmet(2, None) == set()
    assert unmet(4, 8) == {"WF-X009"}
    assert unmet(4, 2) == set()


def test_a_degree_below_the_world_leaves_ranks_out() -> None:
    assert leaves_ranks_out(4, 2)
    assert not leaves_ranks_out(4, 4)
    assert not leaves_ranks_out(4, None)
