"""Plans and refusals as text for people. The JSON form is in `wf_core.resolving.plan`; both come from one record."""

from __future__ import annotations

from wf_core.resolving.choosing import NO_CHOICE
from wf_core.resolving.plan import Plan, PlannedFeature, Refusal, Violation, shown_request
from wf_core.values import show

MARGIN = " " * 11


def explain_plan(plan: Plan) -> str:
    """One paragraph per feature in composition order, then warnings, open questions and the facts used."""
    lines = [f"plan {plan.hash} for {plan.family or 'an unknown family'}: {shown_request(plan.request)}"]
    if not plan.features:
        lines.append("  nothing is asked for: the stock computation runs")
    for number, feature in enumerate(plan.features, 1):
        first, *rest = _feature(feature)
        lines += [f"  {number}. {first}", *(f"     {line}" for line in rest)]
    for name, value in plan.host_keys_dict().items():
        if any(key == name for key, _ in plan.request):
            lines.append(f"  {name} = {show(value)}")
    if plan.chosen:
        lines.append(f"  chosen by the goal: {', '.join(plan.chosen)}")
    lines += [f"  not chosen by the goal: {item}" for item in plan.not_chosen]
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    if plan.not_activatable:
        lines.append(f"  judged only, cannot be activated: {', '.join(plan.not_activatable)}")
    for condition in (*plan.pending, *(item for f in plan.features for item in f.pending)):
        names = sorted({ref.name for ref in condition.refs() if ref.kind == "fact"} & set(plan.unknown()))
        reason = condition.reason.replace("{value}", "...").replace("....", "...")
        lines.append(f"  checked when {', '.join(names)} is known: {reason}")
    if plan.facts_used:
        lines.append(
            "  judged by: " + ", ".join(f"{name} = {show(value)}" for name, value, _ in plan.facts_used)
        )
    return "\n".join(lines)


def _feature(feature: PlannedFeature) -> list[str]:
    tier = feature.tier + (", experimental" if feature.experimental else "")
    options = ", ".join(f"{key}={show(value)}" for key, value in feature.options if value is not None)
    lines = [f"{feature.name} ({feature.kind} of {feature.plugin}), {tier}; asked for by {feature.switch}"]
    if feature.not_activatable:
        lines.append(f"cannot be activated: {feature.not_activatable}")
    if options:
        lines.append(f"options: {options}")
    if feature.tolerance:
        lines.append(f"tolerance: {feature.tolerance}")
    if feature.seams:
        lines.append(f"at: {', '.join(feature.seams)}; stage {feature.stage}")
    if feature.effects:
        lines.append(f"effects: {', '.join(feature.effects)}")
    if feature.evidence:
        lines.append(f"evidence: {', '.join(item.describe() for item in feature.evidence)}")
    return lines


def explain_refusal(refusal: Refusal) -> str:
    """Every reason with the chains from the user's keys to the clash, then what was tried and helps."""
    lines = [f"refused: {shown_request(refusal.request)}"]
    for violation in refusal.violations:
        lines += _violation(violation)
    lines += _advice(refusal)
    return "\n".join(lines)


def _violation(violation: Violation) -> list[str]:
    untested = ""
    if violation.level == "untested":
        untested = f" ({violation.fix.rstrip('.') or 'untested: a warning where nothing else forbids'})"
    reason = violation.reason
    if violation.code == NO_CHOICE:  # what rules out each candidate has a line of its own
        reason = reason.partition(";")[0] + ":"
    lines = [f"  {violation.code.ljust(7)}  {reason}{untested}"]
    lines += [f"{MARGIN}{chain}" for chain in violation.chains]
    if not violation.chains:
        lines.append(f"{MARGIN}involves: {', '.join(violation.involves)}")
    return [*lines, f"{MARGIN}{violation.fix}"] if violation.fix and not violation.chains else lines


def _advice(refusal: Refusal) -> list[str]:
    single = [fix for fix in refusal.fixes if fix.single]
    partial = [fix for fix in refusal.fixes if not fix.single]
    lines = []
    if single:
        lines.append("what to change (any one of these makes it legal):")
        lines += [f"  {fix.change}" for fix in single]
    elif refusal.nearest is not None:
        lines += ["what to change, all of it:", f"  {refusal.nearest}"]
        lines += ["what removes some of the reasons:"] if partial else []
        lines += [f"  {fix.change}" for fix in partial]
    elif refusal.searched:
        lines.append("no request is legal here: see the reasons about the model, its family or the call")
    return lines
