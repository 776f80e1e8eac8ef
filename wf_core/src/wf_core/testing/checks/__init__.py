"""The checks of the conformance kit: what every plugin must prove, one function each.

A check raises `Nonconformity` with a sentence that its author can act on, or `NotApplicable` with the reason. The same
functions stand behind the conformance classes (`wf_core.testing`) and behind ``wf check``.
"""

from __future__ import annotations

from wf_core.testing.checks.registry import (
    Check,
    Nonconformity,
    NotApplicable,
    all_checks,
    check_named,
    checks_for,
)

__all__ = ["Check", "Nonconformity", "NotApplicable", "all_checks", "check_named", "checks_for"]
