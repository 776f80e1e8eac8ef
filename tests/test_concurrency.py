"""Two sessions at once on one base, and two requests at once on one session."""

from __future__ import annotations

import gc
import threading
import weakref

import pytest
import torch

from support import models
from wf_core import Busy

TEA = {"feature_cache": {"algorithm": "teacache", "coefficients": [1.0, 0.0], "threshold": 10.0}}


@pytest.fixture(autouse=True)
def interleaving():
    """Switch threads often, and compute on one thread, so that sessions really interleave."""
    import sys

    before, threads = sys.getswitchinterval(), torch.get_num_threads()
    sys.setswitchinterval(1e-5)
    torch.set_num_threads(1)
    yield
    sys.setswitchinterval(before)
    torch.set_num_threads(threads)


def run_together(*jobs):
    results, errors = [None] * len(jobs), []
    barrier = threading.Barrier(len(jobs))

    def work(index, job):
        try:
            barrier.wait()
            results[index] = job()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=item) for item in enumerate(jobs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    return results


def solo(host, pipe, request, arguments):
    with host.session(pipe, request) as session:
        frames = session.pipe(**models.fresh(arguments)).frames
        return frames, session.report


def test_two_sessions_in_two_threads_equal_their_solo_runs(host):
    pipe = models.p1(scheduler=models.unipc())
    short = models.call(num_inference_steps=4, output_type="pt")
    long = models.call(seed=3, num_inference_steps=6, height=48, output_type="pt")
    cases = [(TEA, long), ({"attention_backend": "math", "vae_temporal_chunk_size": 1}, short)]
    alone = [solo(host, pipe, *case) for case in cases]
    for _ in range(3):
        together = run_together(*(lambda case=case: solo(host, pipe, *case) for case in cases))
        for (frames, report), (expected, expected_report) in zip(together, alone, strict=True):
            assert torch.equal(frames, expected)
            assert report["effective"] == expected_report["effective"]
            assert report["steps"] == expected_report["steps"]
    assert set(alone[0][1]["effective"]) == {"teacache"}


def test_two_threads_with_different_attention_backends_each_run_their_own(host):
    pipe = models.p1()
    arguments = models.call(output_type="latent")
    plain = pipe(**models.fresh(arguments)).frames
    requests = [{"attention_backend": "math"}, {"attention_backend": "torch_flash"}]

    first, second, beside = run_together(
        lambda: solo(host, pipe, requests[0], arguments),
        lambda: solo(host, pipe, requests[1], arguments),
        lambda: pipe(**models.fresh(arguments)).frames,
    )
    operators = [
        next(iter(report["effective"].values()))["evidence"]["operators"] for _, report in (first, second)
    ]
    assert [len(names) for names in operators] == [1, 1]
    assert "math" in next(iter(operators[0])) and "flash" in next(iter(operators[1]))
    for _, report in (first, second):
        claim = next(iter(report["effective"].values()))
        assert claim["state"] == "effective"
        assert claim["evidence"]["attempts"] == claim["evidence"]["successes"] == 4 * 2 * 3 * 2
    assert torch.equal(beside, plain)


def test_a_second_call_on_one_session_is_refused_as_busy_and_the_session_still_works(host):
    """B77: raw pipelines die half-way when two requests share one scheduler."""
    pipe = models.p1()
    arguments = models.call(num_inference_steps=6)
    with host.session(pipe, {}) as session:
        expected = session.pipe(**models.fresh(arguments)).frames
        for _ in range(5):
            inside, done = threading.Event(), threading.Event()

            def hold(pipe, index, timestep, values, inside=inside, done=done):
                inside.set()
                done.wait(10)
                return values

            def second(inside=inside, done=done):
                inside.wait(10)
                try:
                    with pytest.raises(Busy):
                        session.pipe(**models.fresh(arguments))
                    with pytest.raises(Busy):
                        session.close()
                finally:
                    done.set()

            frames, _ = run_together(
                lambda: session.pipe(**models.fresh(arguments), callback_on_step_end=hold).frames,
                second,
            )
            assert torch.equal(frames, expected)
        assert torch.equal(session.pipe(**models.fresh(arguments)).frames, expected)


EVERYTHING = {
    **TEA,
    "attention_backend": "math",
    "vae_temporal_chunk_size": 1,
    "vae_spatial_tiling": True,
    "vae_channels_last_3d": True,
    "vae_decode_autocast": "bf16",
}


@pytest.mark.parametrize("request_", [{}, EVERYTHING], ids=["nothing", "everything"])
def test_a_closed_sessions_copy_goes_at_once_and_the_other_session_works_on(host, request_):
    """By reference counts alone, and although the session itself is still named: nothing waits for the collector."""
    pipe = models.p1(scheduler=models.unipc())
    arguments = models.call(output_type="pt")
    with host.session(pipe, request_) as other:
        gc.collect()
        gc.disable()
        try:
            closing = host.session(pipe, request_)
            expected = closing.pipe(**models.fresh(arguments)).frames
            parts = (closing.pipe, *closing.pipe.transformer.modules(), *closing.pipe.vae.modules())
            seen = [weakref.ref(part) for part in parts]
            del parts
            assert len(seen) > 100
            closing.close()
            assert [type(part).__name__ for ref in seen if (part := ref()) is not None] == []
        finally:
            gc.enable()
        assert torch.equal(other.pipe(**models.fresh(arguments)).frames, expected)
