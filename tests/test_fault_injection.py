"""Many requests on tiny-wan, an exception at a random place in each: nothing is left, the next run is right."""

from __future__ import annotations

import itertools
import os
import random

import pytest
import torch

from support import models
from support.plans import random_requests
from wf_core.checkpoints import load_pipeline
from wf_core.isolation.fingerprint import fingerprint
from wf_core.isolation.guard import ProcessState
from wf_core.testing.watching import Injected, Raiser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

REQUESTS = int(os.environ.get("WF_FAULTS", "25"))
"""`make soak` asks for a hundred."""
CONTENTS_EVERY = 5
SEED = 20261130
SEAMS = ("guidance", "denoiser", "stack", "block", "branch", "attention", "norm_modulate", "gated_residual")


@pytest.fixture(scope="module")
def pipe(host):
    return models.quiet(load_pipeline(host.model_directory("tiny-wan")))


@pytest.fixture(scope="module")
def arguments(pipe):
    with torch.no_grad():
        prompt, negative = pipe.encode_prompt("a red 3 moving left", "")
    return {
        "prompt_embeds": prompt,
        "negative_prompt_embeds": negative,
        "height": 32,
        "width": 32,
        "num_frames": 5,
        "num_inference_steps": 4,
        "guidance_scale": 3.0,
    }


def call(session, arguments):
    """One run; decoded only where the plan touches the VAE."""
    output = "pt" if _at_the_vae(session) else "latent"
    generator = torch.Generator().manual_seed(7)
    return session.pipe(**arguments, output_type=output, generator=generator).frames


def _at_the_vae(session):
    return any(seam.startswith("vae") for feature in session.plan.features for seam in feature.seams)


def run_first(host, pipe, arguments, request):
    """What the request gives before anything has failed, and how often each seam is called."""
    observer = Raiser(*SEAMS, "vae.decode")
    with host.session(pipe, request, extra={"observer": observer}) as session:
        frames = call(session, arguments)
    return frames, {seam: count for seam, count in observer.counts.items() if count}


def test_requests_that_fail_somewhere_leave_nothing_behind(host, pipe, arguments):
    draw = random.Random(SEED)
    requests = list(itertools.islice(random_requests(host, pipe, SEED), REQUESTS))
    first = {}
    for request in requests:
        if str(request) not in first:
            first[str(request)] = run_first(host, pipe, arguments, request)
    assert len(first) > REQUESTS // 2
    before, process = fingerprint(pipe, contents=True), ProcessState.capture()
    hit = dict.fromkeys((*SEAMS, "vae.decode"), 0)
    for number, request in enumerate(requests, 1):
        wanted, counts = first[str(request)]
        seam = draw.choice(sorted(counts))
        place = draw.randint(1, counts[seam])
        raiser = Raiser(seam)
        told = f"request {number}, {request}, call {place} of {seam}"
        with host.session(pipe, request, extra={"raiser": raiser}) as session:
            raiser.arm(seam, place)
            with pytest.raises(Injected, match=f"call {place} of {seam}"):
                call(session, arguments)
            assert session.report["run"]["state"] == "aborted", told
            assert session.held_bytes() == 0, told
            raiser.disarm()
            assert torch.equal(call(session, arguments), wanted), told
            assert session.report["run"]["state"] == "done", told
        contents = number % CONTENTS_EVERY == 0 or number == REQUESTS
        assert before.diff(fingerprint(pipe, contents=contents), run_state=False) == [], told
        assert process.diff(ProcessState.capture()) == [], told
        hit[seam] += 1
    assert all(hit.values()), f"a seam was never hit: {hit}"
    for request in requests[:3]:
        assert torch.equal(run_first(host, pipe, arguments, request)[0], first[str(request)][0])
