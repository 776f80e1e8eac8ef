"""One attention provider, built and driven as a session would: its hook, then prepare, begin, calls, end, close."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Any

import torch
from attrs import field, frozen

from wf_core.errors import Ineligible, PluginFault, WfError
from wf_core.facts import Facts
from wf_core.hookspecs import HOOK_OF_KIND
from wf_core.host import Host
from wf_core.kinds.counters import Counters, FeatureCounters
from wf_core.kinds.runview import RunView
from wf_core.kinds.techniques import AttentionProvider
from wf_core.kinds.variants import Variants, VariantStore
from wf_core.model.seams import Site
from wf_core.plugins.catalog import Offer
from wf_core.values import thaw
from wf_core.verifying.cases import Inputs

KIND = "attention-provider"
LEFT = "left to the stock kernel"


@frozen(slots=False, eq=False)
class Candidate:
    """A feature that may be asked for attention. ``machine`` are the facts of the device and the process."""

    host: Host
    offer: Offer
    machine: Facts
    _built: dict[tuple[str, int], AttentionProvider | str] = field(factory=dict, init=False, repr=False)

    @cached_property
    def options(self) -> dict[str, Any]:
        """The feature's options at their defaults."""
        return {option.name: thaw(option.default) for option in self.offer.feature.options}

    def why_not(self, dtype: str, inputs: Inputs | None = None) -> str:
        """The reason of the first condition that is not met; without ``inputs`` of those that no call decides."""
        facts = self._facts(dtype, inputs)
        for condition in self.offer.feature.conditions:
            verdict = condition.judge(facts, self.options, self.offer.tables)
            if verdict.state == "unmet":
                return verdict.reason
        return ""

    def attend(self, dtype: str, inputs: Inputs) -> torch.Tensor:
        """One call through the provider's own handler. Raises ``Ineligible`` for one that it does not serve."""
        provider = self._provider(dtype, inputs)
        if isinstance(provider, str):
            raise Ineligible(provider)
        case = inputs.case
        role = "self" if case.lq == case.lk else "cross"
        wanted = provider.roles()
        wanted = wanted.get("attention", ()) if isinstance(wanted, Mapping) else wanted
        if wanted and role not in wanted:
            raise Ineligible(f"it takes no {role}-attention")
        site = Site("attention", root="transformer", path="blocks.0.attn1", index=0, role=role)
        handler = provider.handlers()["attention"]
        out = handler(_left, site, inputs.query, inputs.key, inputs.value, inputs.mask)
        if not isinstance(out, torch.Tensor):
            raise TypeError(f"attention must give a tensor, not {type(out).__name__}")
        return out

    def close(self) -> None:
        """Ends the run and closes everything that was built."""
        for provider in self._built.values():
            if isinstance(provider, AttentionProvider):
                provider.end()
                provider.close()
        self._built.clear()

    def _provider(self, dtype: str, inputs: Inputs) -> AttentionProvider | str:
        """The provider for models of a dtype and a head size, or the reason why there is none."""
        key = (dtype, inputs.case.head_dim)
        if key not in self._built:
            try:
                self._built[key] = self._build(self._facts(dtype, inputs))
            except (Ineligible, WfError) as error:
                self._built[key] = str(error)
        return self._built[key]

    def _build(self, facts: Facts) -> AttentionProvider:
        name, plugin, hook = self.offer.feature.name, self.offer.plugin, HOOK_OF_KIND[KIND]
        made = self.host.call_hook(plugin, hook, feature=name, options=self.options, facts=facts)
        if not isinstance(made, AttentionProvider):
            found = type(made).__name__
            raise PluginFault(plugin, hook, f"must return an AttentionProvider for {name!r}, not {found}")
        made.counters = FeatureCounters(name)
        made.counters.open(Counters())
        made.variants = Variants(VariantStore(), name)
        made.prepare({})
        run = _run(facts)
        if reasons := list(made.check(run)):
            raise Ineligible(reasons[0])
        made.begin(run)
        return made

    def _facts(self, dtype: str, inputs: Inputs | None) -> Facts:
        known: dict[str, Any] = {"model.dtype": dtype}
        if inputs is not None:
            case = inputs.case
            known |= {"model.head_dim": case.head_dim, "model.heads": case.heads, "run.tokens": case.lq}
        return self.machine.with_(known, source="the call that is tried")


def _left(*_tensors: object) -> torch.Tensor:
    """The next layer. What the stock kernel computes says nothing about the provider."""
    raise Ineligible(LEFT)


def _run(facts: Facts) -> RunView:
    def no_modulation(expert: str, timesteps: object) -> Mapping[str, torch.Tensor]:
        raise RuntimeError("there is no model whose time signals could be read")

    return RunView(
        num_inference_steps=1,
        timesteps=(),
        experts=(),
        branches=1,
        facts=facts,
        modulation=no_modulation,
        now=lambda: None,
    )
