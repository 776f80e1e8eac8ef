"""Whose fault an exception is: the plugin nearest to where it was raised, found in its traceback, at no cost before."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

from wf_core.errors import Ineligible, PluginFault, WfError

if TYPE_CHECKING:
    from wf_core.kinds.techniques import Technique
    from wf_core.resolving.plan import Plan, PlannedFeature


def plugin_of(plan: Plan, name: str) -> str:
    """The plugin of a planned feature; the name itself for a technique that no plan names."""
    feature = plan.feature(name)
    return feature.plugin if feature is not None else name


def each(
    techniques: Mapping[str, Technique], act: Callable[[Technique], None]
) -> list[tuple[str, Exception]]:
    """Do ``act`` to every technique, the last first, whatever fails; what failed is returned, never raised half-way.

    An interrupt or exit is raised again when all have had their turn.
    """
    failures: list[tuple[str, Exception]] = []
    stop: BaseException | None = None
    for name, technique in reversed(list(techniques.items())):
        try:
            act(technique)
        except Exception as error:
            failures.append((name, error))
        except BaseException as error:
            stop = stop or error
    if stop is not None:
        raise stop
    return failures


T = TypeVar("T")


def ask(
    plan: Plan,
    name: str,
    where: str,
    kind: type[T] | tuple[type[T], ...],
    call: Callable[[], Any],
    passing: type[Exception] = WfError,
) -> T:
    """What a technique answers, if it is of the promised type. Raises ``PluginFault`` that names plugin and place
    for anything that it raises instead, or answers; errors of the host's own kinds, and of ``passing``, pass.
    """
    try:
        answer = call()
    except (WfError, passing):
        raise
    except (Exception, SystemExit) as error:
        raise PluginFault(plugin_of(plan, name), where, f"{type(error).__name__}: {error}") from error
    if not isinstance(answer, kind):
        wanted = kind.__name__ if isinstance(kind, type) else " or ".join(k.__name__ for k in kind)
        raise PluginFault(
            plugin_of(plan, name), where, f"{name!r} must give a {wanted}, not {type(answer).__name__}"
        )
    return answer


def fault_of(plan: Plan, failures: list[tuple[str, Exception]], where: str) -> PluginFault:
    """The first failure as a fault of its plugin."""
    name, error = failures[0]
    fault = PluginFault(plugin_of(plan, name), where, f"{type(error).__name__}: {error}")
    fault.__cause__ = error
    return fault


def feature_in_traceback(
    plan: Plan, techniques: Mapping[str, Technique], error: BaseException
) -> PlannedFeature | None:
    """The planned feature whose technique, or else whose package, is deepest in the traceback; None if none is."""
    packages = {type(t).__module__.split(".")[0]: name for name, t in techniques.items()}
    owners = {id(technique): name for name, technique in techniques.items()}
    found: str | None = None
    trace: TracebackType | None = error.__traceback__
    while trace is not None:
        package = str(trace.tb_frame.f_globals.get("__name__", "")).split(".")[0]
        owner = owners.get(id(trace.tb_frame.f_locals.get("self")))
        if owner is not None:
            found = owner
        elif package in packages:
            found = found or packages[package]
        trace = trace.tb_next
    return plan.feature(found) if found is not None else None


def attribute(plan: Plan, techniques: Mapping[str, Technique], error: BaseException) -> BaseException:
    """The error to raise: the same one with a note that names the plugin, or a ``PluginFault`` for a call that was
    not eligible.
    """
    feature = feature_in_traceback(plan, techniques, error)
    if feature is None:
        return error
    if isinstance(error, Ineligible):
        advice = 'pass on_ineligible="dense" to compute such calls by the stock code, counted'
        fault = PluginFault(feature.plugin, f"feature {feature.name!r}", f"{error} ({advice})")
        fault.__cause__ = error
        return fault
    error.add_note(f"raised in feature {feature.name!r} of plugin {feature.plugin!r}")
    return error
