"""Both runs of a comparison on the toy family, with a pipeline that takes prompts as those of diffusers do."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from wf_core import BadInput, Host, Refused
from wf_core.comparing.batches import Batch, batches
from wf_core.comparing.compare import compare, compare_all
from wf_core.comparing.runs import Bench, counting
from wf_core.testing import host_of
from wf_core.testing.cases import TOY
from wf_core.testing.toy import trial
from wf_core.testing.toy.model import ToyPipeline, Video

NTH = """
schema = 1
name = "cache-nth"
api = 1
kind = "feature-cache"
summary = "Runs the blocks at every n-th solver step"

[[feature]]
name = "nth"
tier = "approximate"
tolerance = "lossy, without a bound; not measured"
slot = "feature-cache"
seams = ["stack"]
effects = ["skips-blocks@stack", "host-state@stack", "rank-uniform-decision", "holds-request-tensors", "inference-only"]
select = [{ switch = "feature_cache", values = ["nth"] }]
example = { feature_cache = "nth" }
evidence = [{ counter = "computed", at_least = 1 }, { counter = "skipped", at_least = 1 }]

[[feature.option]]
name = "interval"
type = "int"
min = 2
default = 2
"""
CODE = """
from wf_core.api import hookimpl


@hookimpl
def wf_feature_cache(feature, options, facts):
    from wf_core.api import Decision, FeatureCache, ResidualState

    class Nth(ResidualState):
        def decide(self, step, value):
            due = step.index % options["interval"] == 0
            return Decision(due, "scheduled" if due else "between")

    class NthCache(FeatureCache):
        def check(self, run):
            wrong = run.num_inference_steps in (3, 5)
            return ["nth runs no 3 and no 5 steps, so that a test can be refused."] if wrong else []

        def new_state(self, run, expert, branch):
            return Nth()

    return NthCache()
"""


class PromptedPipeline(ToyPipeline):
    """The toy pipeline for prompts and several generators: it runs one clip after the other."""

    device = "cpu"
    calls: list[tuple[str, int]] = []

    def __call__(
        self,
        prompt: list[str],
        num_inference_steps: int = 4,
        generator: Any = None,
        output_type: str = "np",
        guidance_scale: float = 3.0,
        callback_on_step_end: Any = None,
        height: int = 16,
        width: int = 16,
        num_frames: int = 5,
    ) -> Any:
        PromptedPipeline.calls.append((type(self).__module__, num_inference_steps))
        assert output_type == "np"
        arguments = trial.bench().arguments()
        last: dict[int, torch.Tensor] = {}
        made = [
            ToyPipeline.__call__(
                self,
                arguments["prompt_embeds"] * (1 + len(text)),
                arguments["negative_prompt_embeds"],
                height,
                width,
                num_frames,
                num_inference_steps,
                guidance_scale,
                seed,
                "pt",
                lambda _pipe, _index, _time, seen, clip=clip: last.update({clip: seen["latents"]}),
            ).frames
            for clip, (text, seed) in enumerate(zip(prompt, generator, strict=True))
        ]
        if callback_on_step_end is not None:
            latents = torch.cat([last[clip] for clip in sorted(last)])
            callback_on_step_end(self, num_inference_steps - 1, 0.0, {"latents": latents})
        return Video(torch.cat(made).permute(0, 2, 3, 4, 1).div(2).add(0.5).float().numpy())


def write_plugin(folder: Path, manifest: str = NTH) -> Path:
    """The toy cache as a package in ``folder``; the path of its manifest."""
    package = folder / "wf_plugin_cache_nth"
    package.mkdir()
    (package / "__init__.py").write_text(CODE)
    path = package / "wf-plugin.toml"
    path.write_text(manifest)
    return path


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Host:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "wf_plugin_cache_nth", raising=False)
    return host_of(TOY, write_plugin(tmp_path))


@pytest.fixture
def pipe() -> PromptedPipeline:
    stock = trial.pipeline()
    PromptedPipeline.calls = []
    return PromptedPipeline(stock.transformer, stock.vae, stock.scheduler)


def bench(host: Host, pipe: Any, steps: int = 4) -> Bench:
    return Bench(host, pipe, {"num_inference_steps": steps})


ONE = [Batch(("a cat",), 3)]


def test_an_empty_request_is_the_plain_run(host: Host, pipe: Any) -> None:
    found = compare(bench(host, pipe), host.resolve(pipe, {}), ONE, scorer=None, keep=None)
    numbers = found.numbers()
    assert numbers["identical"] and numbers["psnr"] is None and numbers["latent_cosine"] == 1
    assert numbers["steps_computed"] == numbers["steps_total"] == 8
    assert found.share == 1.0 and 0 < found.speedup < 100
    assert set(found.unavailable) == {"lpips", "vmaf"}


def test_a_cache_computes_less_and_its_clip_differs(host: Host, pipe: Any) -> None:
    plan = host.resolve(pipe, {"feature_cache": "nth"})
    found = compare(bench(host, pipe), plan, ONE, scorer=None, keep=None)
    numbers = found.numbers()
    assert (numbers["steps_computed"], numbers["steps_total"], found.share) == (4, 8, 0.5)
    assert not numbers["identical"] and numbers["psnr"] > 10 and numbers["latent_cosine"] < 1
    assert numbers["peak_bytes"] is None
    assert found.report["steps"]["caches"]["nth"]["branches"]


def test_the_base_is_as_it_was(host: Host, pipe: Any) -> None:
    before = {name: tensor.clone() for name, tensor in pipe.transformer.state_dict().items()}
    state = {key: value for key, value in vars(pipe).items() if key != "_interrupt"}
    plan = host.resolve(pipe, {"feature_cache": "nth"})
    compare(bench(host, pipe), plan, ONE, scorer=None, keep=None)
    assert all(torch.equal(tensor, before[name]) for name, tensor in pipe.transformer.state_dict().items())
    assert {key: value for key, value in vars(pipe).items() if key != "_interrupt"} == state
    assert not any(module._forward_pre_hooks for module in pipe.transformer.modules())


def test_hooks_that_count_are_gone_after_a_failure(pipe: Any) -> None:
    with pytest.raises(RuntimeError, match="stop"):
        with counting([pipe.transformer]):
            raise RuntimeError("stop")
    assert not pipe.transformer._forward_pre_hooks


def test_every_prompt_has_the_noise_of_its_own_seed_whatever_the_batches(host: Host, pipe: Any) -> None:
    kept: dict[int, list[np.ndarray]] = {}
    for size in (1, 3):
        kept[size] = []
        compare(
            bench(host, pipe),
            host.resolve(pipe, {}),
            batches(["a", "bb", "ccc"], size, seed=7),
            scorer=None,
            keep=lambda prompt, plain, other, size=size: kept[size].append(plain),
        )
    assert all(np.array_equal(a, b) for a, b in zip(kept[1], kept[3], strict=True))
    assert not np.array_equal(kept[1][0], kept[1][1])


def test_a_schedule_too_short_for_the_feature_is_warmed_up_at_its_own_length(host: Host, pipe: Any) -> None:
    """The toy cache refuses 3 steps, the length of the short run."""
    plan = host.resolve(pipe, {"feature_cache": "nth"})
    compare(bench(host, pipe), plan, ONE, scorer=None, keep=None)
    lengths = [steps for _, steps in PromptedPipeline.calls]
    assert lengths.count(3) == 1 and lengths.count(4) == 3  # warm-up and run of the session, the plain run


def test_the_order_alternates_from_batch_to_batch(host: Host, pipe: Any, monkeypatch: Any) -> None:
    order: list[str] = []
    stock_plain, stock_accelerated = Bench.plain, Bench.accelerated
    monkeypatch.setattr(
        Bench, "plain", lambda self, *a, **k: (order.append("plain"), stock_plain(self, *a, **k))[1]
    )
    monkeypatch.setattr(
        Bench, "accelerated", lambda self, *a: (order.append("fast"), stock_accelerated(self, *a))[1]
    )
    compare(bench(host, pipe), host.resolve(pipe, {}), batches(["a", "b", "c"], 1, 0), scorer=None, keep=None)
    assert order == ["fast", "plain", "plain", "fast", "fast", "plain"]


def test_a_refusal_at_the_begin_of_the_run_comes_before_the_plain_run(host: Host, pipe: Any) -> None:
    plan = host.resolve(pipe, {"feature_cache": "nth"})
    with pytest.raises(Refused, match="no 5 steps"):
        compare(bench(host, pipe, steps=5), plan, ONE, scorer=None, keep=None)
    assert PromptedPipeline.calls == []


def test_one_setting_that_fails_does_not_end_the_others(host: Host, pipe: Any) -> None:
    plans = [host.resolve(pipe, request) for request in ({"feature_cache": "nth"}, {})]
    refused, found = compare_all(bench(host, pipe, steps=5), plans, ONE, scorer=None)
    assert isinstance(refused, Refused)
    assert found.numbers()["identical"]


def test_clips_of_no_numbers_are_not_compared(host: Host, pipe: Any, monkeypatch: Any) -> None:
    stock = Bench.accelerated

    def broken(self: Bench, *args: Any) -> Any:
        output = stock(self, *args)
        output.clips[0, 0, 0, 0, 0] = np.nan
        return output

    monkeypatch.setattr(Bench, "accelerated", broken)
    with pytest.raises(BadInput, match="no numbers"):
        compare(bench(host, pipe), host.resolve(pipe, {}), ONE, scorer=None, keep=None)


def test_scores_are_asked_for_both_clips(host: Host, pipe: Any) -> None:
    def scorer(prompts: Any, clips: torch.Tensor) -> Any:
        assert clips.shape == (2, 5, 16, 16, 3)
        return [{"bright": True, "dark": False}, None]

    found = compare(
        bench(host, pipe), host.resolve(pipe, {}), batches(["a", "b"], 2, 0), scorer=scorer, keep=None
    )
    numbers = found.numbers()
    assert numbers["prompt_score"] == numbers["plain_prompt_score"] == 0.5
    assert numbers["prompt_scores"] == {"bright": 1, "dark": 0}


def test_seeds_stay_in_range() -> None:
    with pytest.raises(BadInput, match="too large"):
        batches(["a", "b"], 1, 2**63 - 1)
    assert [batch.seed for batch in batches(["a"] * 5, 2, 10)] == [10, 12, 14]
