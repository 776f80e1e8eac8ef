"""Checks of the manifest alone."""

from __future__ import annotations

from collections.abc import Iterator

from wf_core.manifests.conditions import Condition
from wf_core.resolving.request import parse_request
from wf_core.testing.cases import PluginCase
from wf_core.testing.checks.registry import Nonconformity, NotApplicable, check

FEWEST_WORDS = 4


@check("plugin", needs_code=False)
def manifest_is_complete(case: PluginCase) -> None:
    """Plugin, features, options and switches all say what they are, in words."""
    manifest = case.manifest
    lacking = [] if manifest.summary else ["the plugin has no summary"]
    for feature in manifest.features:
        lacking += [] if feature.summary else [f"feature {feature.name!r} has no summary"]
        lacking += (
            [] if feature.example else [f"feature {feature.name!r} has no example: the smallest request"]
        )
        lacking += [f"option {o.name!r} of {feature.name!r} has no doc" for o in feature.options if not o.doc]
    lacking += [f"switch {switch.name!r} has no doc" for switch in manifest.switches if not switch.doc]
    if lacking:
        raise Nonconformity(f"{case.manifest.path.name}: {'; '.join(lacking)}.")


@check("plugin", needs_code=False)
def every_reason_is_a_sentence(case: PluginCase) -> None:
    """A refused user reads every reason: each is a sentence that names the harm."""
    for where, reason in _reasons(case):
        words = reason.split()
        if len(words) < FEWEST_WORDS:
            raise Nonconformity(
                f"the reason of {where} is {reason!r}: write a sentence that says what is missing or what would go "
                "wrong, and what to do instead."
            )


@check("plugin", needs_code=False)
def examples_turn_their_features_on(case: PluginCase) -> None:
    """The example (the trial, each of a sweep) of every feature is a request that this plugin's switches understand."""
    if not case.manifest.features:
        raise NotApplicable("it has no features")
    for feature in case.manifest.features:
        families = [name for name in feature.families if name != "*"]
        requests = [("example", feature.example), ("trial", feature.trial or feature.example)]
        for what, request in (*requests, *(("sweep", request) for request in feature.sweep)):
            parsed = parse_request(dict(request), case.host.catalog, families[0] if families else "")
            if parsed.problems:
                raise Nonconformity(f"the {what} of {feature.name!r} is refused: {parsed.problems[0].reason}")
            asked = {offer.feature.name for demand in parsed.demands for offer in demand.candidates}
            if feature.name not in asked:
                found = ", ".join(sorted(asked)) or "nothing"
                raise Nonconformity(f"the {what} of {feature.name!r}, {dict(request)}, asks for {found}.")


def _reasons(case: PluginCase) -> Iterator[tuple[str, str]]:
    manifest = case.manifest
    for feature in manifest.features:
        told = (*feature.conditions, *feature.inert)
        yield from ((f"a condition of {feature.name!r}", reason) for reason in _of(told))
    if manifest.family is not None:
        yield from (("a condition of the family", reason) for reason in _of(manifest.family.conditions))
    yield from ((f"the rule {rule.code}", rule.reason) for rule in manifest.rules)


def _of(conditions: tuple[Condition, ...]) -> Iterator[str]:
    return (condition.reason for condition in conditions)
