"""Plans and refusals as text for people. The JSON form is in `wf_core.resolving.plan`; both come from one record."""

from __future__ import annotations

from wf_core.resolving.plan import Plan, PlannedFeature, Refusal, shown_request
from wf_core.values import show


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
    lines += [f"  warning: {warning}" for warning in plan.warnings]
    for condition in (*plan.pending, *(item for f in plan.features for item in f.pending)):
        names = sorted({ref.name for ref in condition.refs() if ref.kind == "fact"} & set(plan.unknown()))
        reason = condition.reason.replace("{value}", "...")
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
    """Every reason with its code and the names that clash, then what else could be changed."""
    lines = [f"refused: {shown_request(refusal.request)}"]
    for violation in refusal.violations:
        lines.append(f"  {violation.code.ljust(7)}  {violation.reason}")
        lines.append(f"           involves: {', '.join(violation.involves)}")
        if violation.fix:
            lines.append(f"           {violation.fix}")
    fixes = {violation.fix for violation in refusal.violations}
    others = [suggestion for suggestion in refusal.suggestions if suggestion not in fixes]
    lines += ["what to change:", *(f"  {suggestion}" for suggestion in others)] if others else []
    return "\n".join(lines)
