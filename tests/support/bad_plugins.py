"""Plugins that are wrong on purpose: one good plugin on the toy family, and for each fault what is different about it.

A plugin is a package of two modules. ``__init__`` holds the hook; ``technique`` holds ``Mine``, whose methods are the
good ones unless a fault brings its own. The manifest is a table of TOML values, of which a fault replaces some.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent, indent

import attrs

from support.plugins import write_plugin

FIELDS: Mapping[str, str] = {
    "tier": '"exact"',
    "summary": '"Passes blocks through and counts them."',
    "seams": '["block"]',
    "families": '["*"]',
    "effects": '["inference-only"]',
    "evidence": '[{ counter = "seen", at_least = 1 }]',
    "example": '{ "SWITCH" = true }',
}
APPROXIMATE = {"tier": '"approximate"', "tolerance": '"nothing is claimed, and nothing was measured"'}
CACHE = {**APPROXIMATE, "seams": '["stack"]', "effects": '["inference-only", "skips-blocks@stack"]'}

INIT = """
from wf_core.api import hookimpl

{top}

{mark}
def {hook}(feature, options, facts):
    from {module}.technique import Mine

    return Mine(options)
"""

TECHNIQUE = """
import os
import random

import torch

from wf_core.api import Technique


KEPT = {{}}


class Good(Technique):
    def __init__(self, options):
        self.options = options
        self.run = None

    def prepare(self, components):
        self.components = components

    def begin(self, run):
        self.run = run

    def end(self):
        self.run = None

    def close(self):
        self.components = None

    def handlers(self):
        return {{"block": self.around}}

    def around(self, inner, site, x):
        self.counters.add("seen")
        return inner(x)


class Mine(Good):
    pass
{methods}
"""

STACK = """
def handlers(self):
    return {"stack": self.around}
"""


@attrs.frozen
class Bad:
    """One fault: the check that finds it, words of its message, and what is different from the good plugin.

    ``fields`` replace those of the feature; ``rows`` are tables of its own, and more features. ``whole``: what other
    processes do matters, so that nothing of the kit is run in this process instead.
    """

    check: str
    words: tuple[str, ...]
    methods: str = ""
    top: str = ""
    hook: str = "wf_fusion"
    mark: str = "@hookimpl"
    fields: Mapping[str, str] = attrs.field(factory=dict)
    rows: str = ""
    whole: bool = False

    def write(self, root: Path, name: str) -> str:
        """Writes the plugin as an installer would leave it; gives the name of its package."""
        plugin, module = f"fusion-{name}", "wf_plugin_fusion_" + name.replace("-", "_")
        code = INIT.format(top=dedent(self.top), mark=self.mark, hook=self.hook, module=module)
        write_plugin(root, plugin, self._manifest(name), code)
        methods = indent(dedent(self.methods), "    ")
        (root / module / "technique.py").write_text(TECHNIQUE.format(methods=methods))
        return module

    def _manifest(self, name: str) -> str:
        switch = name.replace("-", "_")
        fields = "\n".join(f"{key} = {value}" for key, value in {**FIELDS, **self.fields}.items())
        text = f"""\
kind = "fusion"
summary = "Passes everything through, but for one fault"

[[feature]]
name = "{name}"
{fields}
{dedent(self.rows)}
[[switch]]
name = "{switch}"
feature = "{name}"
form = "feature"
off = [false]
doc = "Turns it on."
"""
        return text.replace("SWITCH", switch)


GOOD = Bad("", ())

UNTOUCHED = "base_is_untouched_after_success"
EFFECTS = "declared_effects_match_what_is_seen"
TIER = "the_claimed_tier_holds"
OPTIONS = "every_option_is_checked_at_its_bounds"
COUNTERS = "counters_move_only_when_the_technique_acts"
RELEASED = "memory_is_released"
ALONE = "it_works_alone_with_wf_core"
HOOK = "every_hook_is_implemented"

# What is changed, and the words that a refusal says of it.
CHANGES = {
    "flag": ("torch.backends.cuda.enable_flash_sdp(False)", "sdpa_flash: True -> False"),
    "variable": ('os.environ["SET_BY_A_BAD_PLUGIN"] = "1"', "environment variable SET_BY_A_BAD_PLUGIN set"),
    "grad": ("torch._C._set_grad_enabled(False)", "grad_mode_of_this_thread: True -> False"),
}
MOMENTS = {
    "prepare": "def prepare(self, components):\n    {}",
    "begin": "def begin(self, run):\n    {}",
    "handler": 'def around(self, inner, site, x):\n    {}\n    self.counters.add("seen")\n    return inner(x)',
}


def _process() -> dict[str, Bad]:
    """Each change at each moment. A pipeline's own ``no_grad`` hides the grad mode that a handler leaves."""
    made = {}
    for what, (statement, words) in CHANGES.items():
        for moment, method in MOMENTS.items():
            made[f"{what}-in-{moment}"] = Bad(
                UNTOUCHED, (words, "process_settings()"), methods=method.format(statement)
            )
    made["grad-in-handler"] = Bad(
        EFFECTS,
        ("at block", "grad mode", "no_grad"),
        methods=MOMENTS["handler"].format("torch._C._set_grad_enabled(True)"),
    )
    return made


def _around(before: str = "pass", result: str = "inner(x)") -> str:
    """A handler that does something first, and gives another result."""
    return f"""
def around(self, inner, site, x):
    self.counters.add("seen")
    {before}
    return {result}
"""


BAD: dict[str, Bad] = {
    # --- at import
    "patches-at-import": Bad(
        "importing_it_changes_no_result",
        ("ToyBlock: forward patched", "before anybody asked", "into the hook"),
        top="""
        import sys

        if "wf_core.testing.toy.model" in sys.modules:
            block = sys.modules["wf_core.testing.toy.model"].ToyBlock
            stock = block.forward
            block.forward = lambda self, *args: stock(self, *args)
        """,
        whole=True,
    ),
    "changes-results-at-import": Bad(
        "importing_it_changes_no_result",
        ("the output is another", "before anybody asked"),
        top="""
        import sys

        if "wf_core.testing.toy.model" in sys.modules:
            model = sys.modules["wf_core.testing.toy.model"].ToyTransformer
            stock = model.head
            model.head = lambda self, *args: stock(self, *args) * 1.01
        """,
        whole=True,
    ),
    "imports-torch": Bad(
        "importing_it_is_cheap_and_changes_nothing", ("'torch'", "inside the hook"), top="import torch"
    ),
    "sets-a-variable-at-import": Bad(
        "importing_it_is_cheap_and_changes_nothing",
        ("changes the process", "SET_AT_IMPORT"),
        top="""
        import os
        import sys

        if "torch" not in sys.modules:
            os.environ["SET_AT_IMPORT"] = "1"
        """,
    ),
    "hook-missing": Bad(HOOK, ("no function wf_fusion", "hookimpl"), hook="wf_fusions", mark=""),
    "hook-not-marked": Bad(HOOK, ("no function wf_fusion", "hookimpl"), mark=""),
    "leans-on-another": Bad(
        ALONE,
        ("wf_plugin_fusion_neighbour is another plugin", "imports no other"),
        methods="""
        def prepare(self, components):
            import wf_plugin_fusion_neighbour
        """,
        whole=True,
    ),
    # --- the process, the base, the device
    **_process(),
    "patches-a-class": Bad(
        UNTOUCHED,
        ("ToyBlock: forward patched", "patches no class"),
        methods="""
        def prepare(self, components):
            block = type(components["transformer"].blocks[0])
            stock = block.forward
            block.forward = lambda self, *args: stock(self, *args)
        """,
    ),
    "wraps-a-library-function": Bad(
        UNTOUCHED,
        ("module torch.nn.functional: gelu patched", "patches no class"),
        methods="""
        def prepare(self, components):
            import functools
            stock = torch.nn.functional.gelu
            torch.nn.functional.gelu = functools.wraps(torch.relu)(lambda *args, **named: stock(*args, **named))
        """,
    ),
    "wraps-a-class-under-its-name": Bad(
        UNTOUCHED,
        ("class torch.nn.modules.normalization.LayerNorm: forward patched",),
        methods="""
        def prepare(self, components):
            import functools
            stock = torch.nn.LayerNorm.forward
            torch.nn.LayerNorm.forward = functools.wraps(stock)(lambda self, x: stock(self, x))
        """,
    ),
    "writes-to-a-weight": Bad(
        UNTOUCHED,
        ("transformer.blocks.0.ffn.0.bias", "replaces modules and parameters on the copy"),
        methods="""
        def prepare(self, components):
            with torch.no_grad():
                components["transformer"].blocks[0].ffn[0].bias.add_(1e-3)
        """,
        fields=APPROXIMATE,
    ),
    "writes-over-what-it-is-given": Bad(
        EFFECTS,
        ("at block writes over a tensor that it was given", "out of place"),
        methods=_around("given = x", "inner(x).mul_(1.0)"),
    ),
    "writes-over-its-argument": Bad(
        EFFECTS,
        ("at block writes over a tensor that it was given",),
        methods=_around("x.add_(0.0)"),
    ),
    "writes-for-a-moment": Bad(
        EFFECTS,
        ("add_ on transformer.blocks.0.ffn.0.bias", "Replace the parameter"),
        methods="""
        def around(self, inner, site, x):
            self.counters.add("seen")
            bias = self.components["transformer"].blocks[0].ffn[0].bias.data
            was = bias.clone()
            bias.add_(1.0)
            try:
                return inner(x)
            finally:
                bias.copy_(was)
        """,
        fields=APPROXIMATE,
    ),
    "draws-numbers": Bad(EFFECTS, ("rand", "torch.Generator of your own"), methods=_around("torch.rand(1)")),
    "draws-with-python": Bad(
        EFFECTS, ("python's random", "torch.Generator of your own"), methods=_around("random.random()")
    ),
    "waits": Bad(EFFECTS, ("_local_scalar_dense", "host-sync"), methods=_around("x.mean().item()")),
    # --- skipping
    "skips-undeclared": Bad(
        EFFECTS,
        ("calls of block", "declare the effect skips-blocks"),
        methods=_around(result="x if site.index else inner(x)"),
        fields=APPROXIMATE,
    ),
    "never-skips": Bad(
        EFFECTS,
        ("every call went on", "the trial request must make the feature skip"),
        fields={"effects": '["inference-only", "skips-blocks@block"]'},
    ),
    "ranks-differ": Bad(
        "ranks_decide_alike",
        ("decide differently", "rank-local-decision"),
        methods=STACK + _around(result="inner(x) if int(x.abs().sum() * 1000) % 2 else x"),
        fields={
            **CACHE,
            "effects": '["inference-only", "skips-blocks@stack", "host-sync@stack", "rank-uniform-decision"]',
        },
        whole=True,
    ),
    # --- runs and sessions
    "swallows": Bad(
        "base_is_untouched_after_an_exception_at_every_seam_call",
        ("call 1 of", "of block was swallowed"),
        methods="""
        def around(self, inner, site, x):
            self.counters.add("seen")
            try:
                return inner(x)
            except RuntimeError:
                return x
        """,
    ),
    "translates": Bad(
        "base_is_untouched_after_an_exception_at_every_seam_call",
        ("came out as ValueError", "Let what is not yours pass"),
        methods="""
        def around(self, inner, site, x):
            self.counters.add("seen")
            try:
                return inner(x)
            except RuntimeError as error:
                raise ValueError("something is wrong") from error
        """,
    ),
    "left-after-an-abort": Bad(
        "base_is_untouched_after_an_abort",
        ("after one that ended by abort", "Drop it in begin() and end()"),
        methods=STACK
        + """
def around(self, inner, site, x):
    self.counters.add("seen")
    self.calls = getattr(self, "calls", 0) + 1
    if self.calls == 2 * self.run.num_inference_steps:
        self.calls = 0
    return inner(x) * (1 + 0.01 * self.calls)
""",
        fields={**APPROXIMATE, "seams": '["stack"]'},
    ),
    "leaks-between-runs": Bad(
        "a_second_request_starts_clean",
        ("the second run of a session", "Drop it in begin() and end()"),
        methods=STACK
        + """
calls = 0

def around(self, inner, site, x):
    self.counters.add("seen")
    self.calls += 1
    return inner(x) if self.calls % 3 else x
""",
        fields=CACHE,
    ),
    "shares-a-class-attribute": Bad(
        "two_sessions_at_once_equal_their_solo_runs",
        ("of two sessions at once the", "never on a class or a module"),
        methods=STACK
        + """
kept = {}

def begin(self, run):
    self.kept.clear()
    self.run = run

def end(self):
    self.kept.clear()

def around(self, inner, site, x):
    self.counters.add("seen")
    step = self.run.now()
    if step.index % 2:
        return x + self.kept[step.branch]
    out = inner(x)
    self.kept[step.branch] = out - x
    return out
""",
        fields=CACHE,
    ),
    "keeps-tensors-and-says-so": Bad(
        RELEASED,
        ("bytes of tensors are held after a run", "release them in end()"),
        methods=_around("self.last = x.clone()")
        + """
last = None

def held_tensors(self):
    return () if self.last is None else (self.last,)
""",
    ),
    "keeps-tensors": Bad(
        RELEASED,
        ("alive after it", "release every tensor in end()"),
        methods=_around("self.last = x.clone()"),
    ),
    "keeps-outputs-in-a-module": Bad(
        RELEASED,
        ("alive after it", "keep none in a module-level"),
        methods=_around("KEPT[len(KEPT)] = x = inner(x)", "x"),
    ),
    "keeps-what-it-prepares": Bad(
        RELEASED,
        ("tensors are alive after two sessions", "module-level"),
        methods="""
        kept = []

        def prepare(self, components):
            self.kept.append(torch.zeros(3))
        """,
    ),
    # --- evidence and results
    "counts-in-begin": Bad(
        COUNTERS,
        ("no handler ran, and the report says effective", "count in the handler"),
        methods="""
        def begin(self, run):
            self.counters.add("seen")

        def around(self, inner, site, x):
            return inner(x)
        """,
    ),
    "never-counts": Bad(
        "asked_for_is_effective",
        ("the report says inert", "self.counters.add()"),
        methods="""
        def around(self, inner, site, x):
            return inner(x)
        """,
    ),
    "claims-exact": Bad(
        TIER, ("bit-identical", "claim equivalent with a bound"), methods=_around(result="inner(x) * 1.001")
    ),
    "bound-does-not-hold": Bad(
        TIER,
        ("relative-l2 to the plain run is", "the bound is 1e-09"),
        methods=_around(result="inner(x) * 1.001"),
        fields={"tier": '"equivalent"', "tolerance": '"relative L2 difference at most 1e-9"'},
        rows="bound = [{ measure = 'relative-l2', value = 1e-9 }]",
    ),
    "no-bound": Bad(
        TIER,
        ("needs its bound as a number", "[[feature.bound]]"),
        fields={"tier": '"equivalent"', "tolerance": '"the same up to rounding"'},
    ),
    "not-finite": Bad(
        "asked_for_is_effective",
        ("not finite",),
        methods=_around(result="inner(x) * float('nan')"),
        fields=APPROXIMATE,
    ),
    # --- the manifest
    "option-without-range": Bad(
        OPTIONS,
        ("'strength'", "takes any number", "say min, above or max"),
        rows="""
        [[feature.option]]
        name = "strength"
        type = "float"
        default = 0.5
        doc = "How much."
        """,
    ),
    "default-refused": Bad(
        OPTIONS,
        ("refuses its own default (strength = 0.5)", "Change the default"),
        fields={"trial": "{ SWITCH = { strength = 0.7 } }"},
        rows="""
        [[feature.option]]
        name = "strength"
        type = "float"
        min = 0.0
        max = 1.0
        default = 0.5
        doc = "How much."

        [[feature.condition]]
        option = "strength"
        gt = 0.6
        reason = "a strength of {value} changes nothing that could be seen; use 0.7 or more."
        """,
    ),
    "one-word-reason": Bad(
        "every_reason_is_a_sentence",
        ("'unsupported'", "write a sentence"),
        rows="""
        [[feature.condition]]
        fact = "model.layers"
        ge = 1
        reason = "unsupported"
        """,
    ),
    "no-doc": Bad(
        "manifest_is_complete",
        ("option 'strength'", "has no doc"),
        rows="""
        [[feature.option]]
        name = "strength"
        type = "float"
        min = 0.0
        default = 0.5
        """,
    ),
    "asks-for-another": Bad(
        "examples_turn_their_features_on",
        ("the example of 'asks-for-another'", "asks for other"),
        fields={"example": "{ other = true }"},
        rows="""
        [[feature]]
        name = "other"
        tier = "exact"
        summary = "The feature that is meant."
        seams = ["block"]
        effects = ["inference-only"]
        evidence = [{ counter = "seen", at_least = 1 }]
        example = { other = true }

        [[switch]]
        name = "other"
        feature = "other"
        form = "flag"
        off = [false]
        doc = "Turns the other one on."
        """,
    ),
}

FAMILY_INIT = """
from wf_core.api import hookimpl


@hookimpl
def wf_model_family():
    from {module}.family import Mine

    return Mine()
"""

FAMILY = """
import torch

from wf_core.testing.toy.family import ToyFamily


class Mine(ToyFamily):
    pass
{methods}
"""


@attrs.frozen
class BadFamily:
    """A toy family with one fault, as `Bad`; ``seams`` are declared beside those of the toy family."""

    check: str
    words: tuple[str, ...]
    methods: str = ""
    seams: tuple[str, ...] = ()
    trial: str = "wf_core.testing.toy.trial:bench"

    def write(self, root: Path, name: str) -> str:
        """Writes the plugin; gives the name of its package."""
        import wf_core.testing.toy

        module = "wf_plugin_" + name.replace("-", "_")
        toy = Path(wf_core.testing.toy.__file__).with_name("wf-plugin.toml").read_text()
        header, _, rest = toy.partition('kind = "model-family"')
        assert header.startswith('schema = 1\nname = "toy"')
        rest = rest.replace('name = "toy"', f'name = "{name}"', 1)
        rest = rest.replace('trial = "wf_core.testing.toy.trial:bench"', f'trial = "{self.trial}"', 1)
        for seam in self.seams:
            rest = rest.replace("seams = [", f'seams = [\n    "{seam}",', 1)
        write_plugin(root, name, f'kind = "model-family"{rest}', FAMILY_INIT.format(module=module))
        methods = indent(dedent(self.methods), "    ")
        (root / module / "family.py").write_text(FAMILY.format(methods=methods))
        return module


BAD_FAMILIES: dict[str, BadFamily] = {
    "changes-the-result": BadFamily(
        "an_empty_session_is_bit_identical",
        ("an empty session differs", "the adapter changes the computation"),
        methods="""
        def install(self, components, wiring):
            super().install(components, wiring)
            bias = components["transformer"].out.bias
            components["transformer"].out.bias = torch.nn.Parameter(bias + 1e-3, requires_grad=False)
        """,
    ),
    "writes-to-the-base": BadFamily(
        "an_empty_session_is_bit_identical",
        ("transformer.out.bias",),
        methods="""
        def install(self, components, wiring):
            super().install(components, wiring)
            with torch.no_grad():
                components["transformer"].out.bias.zero_()
        """,
    ),
    "seam-not-there": BadFamily(
        "every_seam_is_there_and_exact",
        ("the seam rope is declared", "nothing to attach to", "wrap it in install()"),
        seams=("rope",),
    ),
    "seam-never-called": BadFamily(
        "every_seam_is_there_and_exact",
        ("the seam rope is declared", "was never called", "take it out of `seams`"),
        methods="""
        def install(self, components, wiring):
            super().install(components, wiring)
            wiring.wrap("rope", lambda query, key, angles: (query, key), root="transformer")
        """,
        seams=("rope",),
    ),
    "seam-is-not-exact": BadFamily(
        "every_seam_is_there_and_exact",
        ("a handler at attention", "changes the output"),
        methods="""
        def install(self, components, wiring):
            super().install(components, wiring)
            if wiring.seams.claimed("attention"):
                bias = components["transformer"].out.bias
                components["transformer"].out.bias = torch.nn.Parameter(bias + 1e-3, requires_grad=False)
        """,
    ),
    "writes-between-blocks": BadFamily(
        "what_goes_between_blocks_is_not_written_to",
        ("blocks.0", "written to later on", "out of place"),
        methods="""
        def install(self, components, wiring):
            super().install(components, wiring)
            calls = vars(components["transformer"])["_wf"]

            def spoil(block, x):
                out = block(x)
                x.zero_()
                return out

            calls._blocks = [lambda x, block=block: spoil(block, x) for block in calls._blocks]
        """,
    ),
    "keeps-state-after-an-abort": BadFamily(
        "a_run_that_raises_leaves_nothing",
        ("the run after an aborted one differs", "release()"),
        methods="""
        left = 0

        def install(self, components, wiring):
            super().install(components, wiring)
            self.left, root = 0, components["transformer"]
            stock = vars(root)["_wf"]

            def late(*args, **kwargs):
                out = stock(*args, **kwargs)
                self.left -= 1
                return out if self.left >= 0 else (out[0] * 1.01,)

            object.__setattr__(root, "_wf", late)

        def plan_call(self, pipe, arguments):
            plan = super().plan_call(pipe, arguments)
            self.left = self.left or plan.branches * len(plan.schedule.timesteps)
            return plan
        """,
    ),
    "still-runs-when-closed": BadFamily(
        "a_closed_session_says_so",
        ("closed session still runs", "uninstall()"),
        methods="""
        def uninstall(self, components):
            root = components["transformer"]
            stock = type(root).__mro__[1].forward
            object.__setattr__(root, "_wf", lambda *args, **kwargs: stock(root, *args, **kwargs))
        """,
    ),
    "no-bench": BadFamily("an_empty_session_is_bit_identical", ("a family needs `trial",), trial=""),
}
