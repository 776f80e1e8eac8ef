"""A feature that finds, when a session opens, that it cannot be used: refused with the reason, or passed over."""

from __future__ import annotations

import pytest
import torch

from support import models
from support.plugins import write_plugin
from wf_core import Refused

MANIFEST = """
kind = "attention-provider"
summary = "A kernel whose package imports and does not work"

[[feature]]
name = "hollow"
tier = "equivalent"
tolerance = "none: it never runs"
summary = "Says at open that it cannot run."
slot = "attention"
seams = ["attention"]
families = ["*"]
select = [{ switch = "attention_backend", values = ["hollow"], groups = ["auto"], order = 1 }]
example = { attention_backend = "hollow" }
evidence = [{ counter = "successes", at_least = 1 }]
"""
CODE = """
from wf_core.api import hookimpl

TRIED = []

@hookimpl
def wf_attention_provider(feature, options, facts):
    from wf_core.api import AttentionProvider, Ineligible

    class Hollow(AttentionProvider):
        def attend(self, query, key, value, mask):
            raise AssertionError("never called")

        def prepare(self, components):
            TRIED.append(sorted(components))
            raise Ineligible("its package has no kernel for this device")

    return Hollow()
"""


@pytest.fixture
def hollow_host(host_with):
    return host_with(lambda root: write_plugin(root, "attention-hollow", MANIFEST, CODE))


def test_one_that_was_named_is_refused_with_its_reason_and_not_tried_again(hollow_host):
    pipe = models.p1()
    with pytest.raises(Refused, match="no kernel for this device") as refused:
        hollow_host.session(pipe, {"attention_backend": "hollow"})
    (violation,) = refused.value.refusal.violations
    assert (violation.code, violation.involves) == ("WF-S003", ("attention_backend", "hollow"))
    with pytest.raises(Refused, match="no kernel for this device"):
        hollow_host.resolve(pipe, {"attention_backend": "hollow"})
    hollow_host.forget_failures()
    assert hollow_host.resolve(pipe, {"attention_backend": "hollow"}).features[0].name == "hollow"


def test_auto_goes_on_to_the_next(hollow_host):
    pipe, arguments = models.p1(), models.call()
    stock = pipe(**models.fresh(arguments)).frames
    assert hollow_host.resolve(pipe, {"attention_backend": "auto"}).features[0].name == "hollow"
    for _ in range(2):
        with hollow_host.session(pipe, {"attention_backend": "auto"}) as session:
            assert torch.equal(session.pipe(**models.fresh(arguments)).frames, stock)
        (effective,) = session.report["effective"]
        assert effective == "sdpa"
    import wf_plugin_attention_hollow

    assert len(wf_plugin_attention_hollow.TRIED) == 1


def test_a_plan_that_was_made_before_is_refused_and_nothing_stays(hollow_host):
    pipe = models.p1()
    plan = hollow_host.resolve(pipe, {"attention_backend": "auto"})
    with pytest.raises(Refused, match="no kernel for this device"):
        hollow_host.session(pipe, plan)
    with hollow_host.session(pipe, {"attention_policy": "inherit"}):
        pass
