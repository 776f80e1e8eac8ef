"""A model family of somebody else: packages that this repository knows nothing of are installed by their metadata,
conform, and run techniques of this repository as they are.

The model is another than the kit's toy: blocks with attention and feed-forward side by side, on image and text tokens
as one sequence, and no cache context around its calls.
"""

from __future__ import annotations

import gc
import shutil
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from wf_core import Host, Refused
from wf_core.resolving.asking import requests_for
from wf_core.testing import fingerprint
from wf_core.testing.examination import examine

SOURCE = Path(__file__).parent / "data" / "fourth_family"
LAYERS, STEPS, CALLS = 3, 8, 16
"""Of the model, and of the bench's call: two branches."""


def write_family(site: Path) -> Path:
    """The model's package and the plugin's, and what an installer would have written beside them."""
    shutil.copytree(SOURCE, site, ignore=shutil.ignore_patterns("__pycache__"))
    for name, entry in {
        "mosaic-video": "",
        "wf-plugin-mosaic": "[wf.plugins]\nmosaic = wf_plugin_mosaic\n",
    }.items():
        info = site / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "RECORD").write_text("")
        if entry:
            (info / "entry_points.txt").write_text(entry)
    return site


@pytest.fixture(scope="module")
def mosaic(tmp_path_factory):
    """The host with the family, a pipeline of it, the arguments of a short call, and the plain result."""
    site = write_family(tmp_path_factory.mktemp("elsewhere") / "site")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(site))
        patch.setenv("PYTHONPATH", str(site))
        from wf_plugin_mosaic.trial import bench

        found = bench()
        pipe = found.pipeline()
        plain = pipe(**found.arguments()).frames
        yield SimpleNamespace(host=Host.discover(), pipe=pipe, call=found.arguments, plain=plain)
        for name in [n for n in sys.modules if n.partition(".")[0] in ("mosaic_video", "wf_plugin_mosaic")]:
            del sys.modules[name]


def run(mosaic, request, **changes):
    """The frames of a session's run, its report, and how often a layer of the model was computed."""
    count = []
    with mosaic.host.session(mosaic.pipe, request, verify_contents=True) as session:
        for layer in session.pipe.transformer.layers:
            layer.norm.register_forward_hook(lambda *_: count.append(1))
        frames = session.pipe(**mosaic.call(**changes)).frames
        report = session.report
    return frames, report, len(count)


def by_hand(mosaic, computed, call):
    """The pipeline's own loop in this file. ``call(net, latents, time, text, kept)`` gives a velocity and what is kept
    for later steps of the branch; ``kept`` is None at the steps that are ``computed``.
    """
    pipe, given = mosaic.pipe, mosaic.call()
    net, scheduler = pipe.transformer, type(pipe.scheduler)()
    latents = torch.randn(1, 4, 2, 4, 6, generator=given["generator"])
    scheduler.set_timesteps(STEPS)
    kept = {}
    with torch.no_grad():
        for index, time in enumerate(scheduler.timesteps):
            found = {}
            for name in ("caption", "empty_caption"):
                old = None if index in computed else kept[name]
                found[name], new = call(net, latents, time.expand(1), given[name], old)
                kept[name] = new if old is None else old
            uncond = found["empty_caption"]
            latents = scheduler.step(uncond + 3.0 * (found["caption"] - uncond), latents)
        return pipe.vae.decode(latents, return_dict=False)[0]


def test_it_is_found_like_any_plugin_and_nothing_of_it_is_known_without(mosaic, host):
    record = mosaic.host.discovery.plugin("mosaic")
    assert (record.state, record.distribution, record.version) == ("available", "wf-plugin-mosaic", "1.0")
    assert "mosaic" in mosaic.host.catalog.family_names()
    with pytest.raises(Refused) as caught:
        host.resolve(mosaic.pipe, {})  # a host that was made before it was installed
    assert {violation.code for violation in caught.value.refusal.violations} == {"WF-M002"}


def test_it_conforms(mosaic):
    results = list(examine(mosaic.host.discovery.plugin("mosaic"), ()))
    assert [(result.check.name, result.message) for result in results if result.state == "failed"] == []
    assert sum(result.state == "passed" for result in results) >= 9


def test_an_empty_session_is_bit_identical_and_goes_when_it_is_dropped(mosaic):
    before = fingerprint(mosaic.pipe, contents=True)
    gc.collect()
    gc.disable()
    try:
        with mosaic.host.session(mosaic.pipe, {}, verify_contents=True) as session:
            assert torch.equal(session.pipe(**mosaic.call()).frames, mosaic.plain)
            report, copy = session.report, weakref.ref(session.pipe.transformer)
        del session
        assert copy() is None, "the copy goes with its session, without the garbage collector"
    finally:
        gc.enable()
    assert report["identity"] == "ordinal"
    assert report["steps"]["calls"] == {"transformer/cond": STEPS, "transformer/uncond": STEPS}
    assert before.diff(fingerprint(mosaic.pipe, contents=True), run_state=False) == []
    assert torch.equal(mosaic.pipe(**mosaic.call()).frames, mosaic.plain)


# --- techniques of this repository -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sdpa", "math"])
def test_a_provider_of_attention(mosaic, name):
    frames, report, layers = run(mosaic, {"attention_backend": name})
    claim = report["effective"][name]
    assert claim["state"] == "effective"
    assert claim["evidence"]["successes"] == claim["evidence"]["attempts"] == layers == CALLS * LAYERS
    if name == "sdpa":
        assert torch.equal(frames, mosaic.plain)
    torch.testing.assert_close(frames, mosaic.plain, rtol=0, atol=1e-5)


def test_packed_projections(mosaic):
    frames, report, _ = run(mosaic, {"fuse_qkv": True})
    claim = report["effective"]["fuse-qkv"]
    assert claim["state"] == "effective"
    assert (claim["evidence"]["fused_blocks"], claim["evidence"]["projections"]) == (LAYERS, CALLS * LAYERS)
    torch.testing.assert_close(frames, mosaic.plain, rtol=0, atol=1e-5)


def easycache(net, latents, time, text, kept):
    """The last output, carried along with the latent."""
    if kept is not None:
        return latents + kept, None
    velocity = net(latents, time, text, return_dict=False)[0]
    return velocity, velocity - latents


def taylorseer(net, latents, time, text, kept):
    """Of order 0: what all layers added at the last computed step."""
    signal, tokens = net.signal(time), net.tokens(latents, text)
    out = tokens if kept is None else tokens + kept
    for layer in net.layers if kept is None else ():
        out = layer(out, signal)
    return net.latents(out, latents), out - tokens


def firstblock(net, latents, time, text, kept):
    """The first layer, and what all others added at the last computed step."""
    signal = net.signal(time)
    first = net.layers[0](net.tokens(latents, text), signal)
    out = first if kept is None else first + kept
    for layer in net.layers[1:] if kept is None else ():
        out = layer(out, signal)
    return net.latents(out, latents), out - first


CACHES = {
    "easycache": (easycache, {"threshold": 1e9, "first": 2, "last": 1}, {0, 1, 7}, 0),
    "taylorseer": (taylorseer, {"interval": 3, "order": 0, "first": 1, "last": 1}, {0, 3, 6, 7}, 0),
    "firstblock": (firstblock, {"residual_diff_threshold": 1e9, "first": 2, "last": 1}, {0, 1, 7}, 1),
}
"""What is to come out, the options, the steps that are computed with them, and the layers that run at the others."""


@pytest.mark.parametrize("name", CACHES)
def test_a_feature_cache_skips_the_right_steps_and_gives_the_right_clip(mosaic, name):
    call, options, computed, always = CACHES[name]
    frames, report, layers = run(mosaic, {"feature_cache": {"algorithm": name, **options}})
    claim, steps = report["effective"][name], report["steps"]["caches"][name]["branches"]
    assert claim["state"] == "effective"
    skipped = STEPS - len(computed)
    assert (claim["evidence"]["computed"], claim["evidence"]["skipped"]) == (2 * len(computed), 2 * skipped)
    assert {branch: set(found["computed"]) for branch, found in steps.items()} == {
        "transformer/cond": computed,
        "transformer/uncond": computed,
    }
    assert layers == 2 * (len(computed) * LAYERS + skipped * always)
    assert not torch.equal(frames, mosaic.plain)
    torch.testing.assert_close(frames, by_hand(mosaic, computed, call), rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    "options",
    [
        {"algorithm": "easycache", "threshold": 0.0, "first": 1},
        {"algorithm": "firstblock", "residual_diff_threshold": 0.0, "first": 1},
        {"algorithm": "taylorseer", "interval": 1},
    ],
    ids=lambda options: options["algorithm"],
)
def test_a_feature_cache_that_may_skip_nothing_changes_nothing(mosaic, options):
    frames, report, layers = run(mosaic, {"feature_cache": options})
    assert torch.equal(frames, mosaic.plain)
    assert layers == CALLS * LAYERS
    assert report["effective"][options["algorithm"]]["state"] != "effective"


def test_three_at_once(mosaic):
    request = {
        "attention_backend": "math",
        "fuse_qkv": True,
        "feature_cache": {"algorithm": "firstblock", **CACHES["firstblock"][1]},
    }
    frames, report, layers = run(mosaic, request)
    assert {name: claim["state"] for name, claim in report["effective"].items()} == {
        "math": "effective",
        "fuse-qkv": "effective",
        "firstblock": "effective",
    }
    assert report["effective"]["math"]["evidence"]["successes"] == layers == 2 * (3 * LAYERS + 5)
    alone = by_hand(mosaic, CACHES["firstblock"][2], firstblock)
    torch.testing.assert_close(frames, alone, rtol=0, atol=1e-5)


# --- what does not run here ------------------------------------------------------------------------------------------


def test_every_feature_is_refused_for_the_family_or_its_seams_where_it_says_so_and_nowhere_else(mosaic):
    """By the declared families (WF-M001) and by the seams that are missing (WF-M004), for each feature there is."""
    host, seen = mosaic.host, {"WF-M001": set(), "WF-M004": set(), "": set()}
    offered = set(host.catalog.family_seams("mosaic"))
    for offer in host.catalog.features():
        feature = offer.feature
        expected = set() if feature.supports("mosaic") else {"WF-M001"}
        if set(feature.seams) - {*offered, *feature.optional_seams}:
            expected.add("WF-M004")
        try:
            host.resolve("mosaic-tiny", requests_for(offer, host.catalog)[0])
            found = set()
        except Refused as refused:
            found = {violation.code for violation in refused.refusal.violations} & {"WF-M001", "WF-M004"}
        assert found == expected, feature.name
        for code in expected or {""}:
            seen[code].add(feature.name)
    assert {"adacache", "vae-spatial-tiling"} <= seen["WF-M001"]
    assert {"blocktaylorseer", "fused-modulation", "inplace-residual"} <= seen["WF-M004"]
    assert {"sdpa", "math", "fuse-qkv", *CACHES} <= seen[""]


def test_a_cache_that_was_calibrated_on_other_models_is_refused_until_it_is_told(mosaic):
    with pytest.raises(Refused) as caught:
        mosaic.host.session(mosaic.pipe, {"feature_cache": "teacache"})
    reasons = {violation.code: violation.reason for violation in caught.value.refusal.violations}
    assert "mosaic-tiny" in reasons["WF-K001"]
    told = {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 1e9, "first": 2, "last": 1}
    frames, report, layers = run(mosaic, {"feature_cache": told})
    claim = report["effective"]["teacache"]
    assert (claim["state"], claim["evidence"]["computed"], layers) == ("effective", 6, 6 * LAYERS)
    expected = by_hand(mosaic, {0, 1, 7}, taylorseer)  # of order 0: it keeps what TeaCache keeps
    torch.testing.assert_close(frames, expected, rtol=0, atol=1e-5)


def test_a_size_off_its_grid_is_refused_before_any_call(mosaic):
    calls = []
    with mosaic.host.session(mosaic.pipe, {"attention_backend": "math"}) as session:
        session.pipe.transformer.register_forward_pre_hook(lambda *_: calls.append(1))
        with pytest.raises(Refused, match="height 20 is not a multiple of 8; the nearest is 16"):
            session.pipe(**mosaic.call(height=20))
    assert not calls
