"""Small plugin distributions written into a temporary folder, as an installer would leave them."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent


def write_plugin(root: Path, name: str, manifest: str, code: str, version: str = "1.0") -> Path:
    """A distribution ``wf-plugin-NAME`` in ``root``: metadata, manifest and one module. Returns ``root``."""
    module = "wf_plugin_" + name.replace("-", "_")
    package = root / module
    package.mkdir(parents=True)
    (package / "__init__.py").write_text(dedent(code))
    header = f'schema = 1\nname = "{name}"\napi = 1\n'
    (package / "wf-plugin.toml").write_text(header + dedent(manifest))
    info = root / f"wf_plugin_{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: wf-plugin-{name}\nVersion: {version}\n")
    (info / "entry_points.txt").write_text(f"[wf.plugins]\n{name} = {module}\n")
    (info / "RECORD").write_text("")
    return root


CHAOS_MANIFEST = """
kind = "fusion"
summary = "Raises on demand, at a place that the request names."

[[feature]]
name = "chaos"
tier = "exact"
summary = "Passes everything through, and raises at the place named by its option."
seams = ["denoiser", "attention", "vae.decode"]
stage = "fusion"
families = ["*"]
effects = ["inference-only"]
evidence = [{ counter = "seen", at_least = 1 }]

[[feature.option]]
name = "at"
type = "str"
default = "never"
doc = "never, import, build, activation, begin, first-step, middle-step, attention, decode, evidence, end or close."

[[feature.option]]
name = "kind"
type = "choice"
choices = ["error", "ineligible", "interrupt", "flag", "variable", "grad", "class", "shape"]
default = "error"
doc = "What is raised, or what is changed instead: an SDPA flag, a variable, the grad mode, a class."

[[feature]]
name = "bystander"
tier = "exact"
summary = "Counts the calls that it sees, in the order after chaos."
seams = ["denoiser"]
stage = "fusion"
after = ["chaos"]
families = ["*"]
effects = ["inference-only"]
evidence = [{ counter = "seen", at_least = 1 }]

[[feature]]
name = "global-precision"
tier = "equivalent"
tolerance = "none is needed: nothing here multiplies on a device that knows the setting"
summary = "Holds the matmul precision of the process."
seams = ["denoiser"]
stage = "fusion"
families = ["*"]
effects = ["inference-only", "process-global"]
evidence = [{ counter = "seen", at_least = 1 }]

[[feature.option]]
name = "value"
type = "str"
default = "medium"
doc = "The precision."

[[switch]]
name = "bystander"
feature = "bystander"
form = "flag"
off = [false]
doc = "Count calls."

[[switch]]
name = "global_precision"
feature = "global-precision"
form = "flag"
off = [false]
doc = "Hold the matmul precision."

[[switch]]
name = "chaos"
feature = "chaos"
form = "feature"
shorthand = ""
off = [false]
doc = "Raise at a place."
"""

CHAOS_CODE = """
import os

import torch

from wf_core.api import Ineligible, Technique, hookimpl

if os.environ.get("CHAOS_AT") == "import":
    raise RuntimeError("chaos at import")


class Bystander(Technique):
    def __init__(self):
        self.shown = 0

    def handlers(self):
        return {"denoiser": self.denoiser}

    def begin(self, run):
        self.shown = 0

    def evidence(self):
        return {"shown": self.shown}

    def denoiser(self, inner, site, *args):
        self.counters.add("seen")
        self.shown += 1
        return inner(*args)


class GlobalPrecision(Bystander):
    def __init__(self, value):
        super().__init__()
        self.value = value

    def process_settings(self):
        return {"matmul_precision": self.value}


class Chaos(Technique):
    def __init__(self, at, kind="error"):
        self.at = at
        self.kind = kind
        self.calls = 0
        if at == "build":
            raise RuntimeError("chaos at build")

    def _raise_at(self, place):
        if self.at == place and self.kind == "flag":
            torch.backends.cuda.enable_math_sdp(False)
        elif self.at == place and self.kind == "variable":
            os.environ["CHAOS_WAS_HERE"] = "1"
        elif self.at == place and self.kind == "grad":
            torch._C._set_grad_enabled(False)
        elif self.at == place and self.kind == "class":
            block = type(self.components["transformer"].blocks[0])
            block.forward_of_before = block.forward
            block.forward = lambda self, *args, **kwargs: self.forward_of_before(*args, **kwargs) * 1.5
        elif self.at == place:
            kind = {"error": RuntimeError, "ineligible": Ineligible, "interrupt": KeyboardInterrupt}[self.kind]
            raise kind("chaos at " + place)

    def evidence(self):
        self._raise_at("evidence")
        return {}

    def prepare(self, components):
        self.components = components
        self._raise_at("activation")

    def begin(self, run):
        self.calls = 0
        self._raise_at("begin")

    def end(self):
        self._raise_at("end")

    def close(self):
        self._raise_at("close")

    def handlers(self):
        return {"denoiser": self.denoiser, "attention": self.attention, "vae.decode": self.decode}

    def denoiser(self, inner, site, *args):
        self.calls += 1
        self.counters.add("seen")
        if self.kind == "shape" and self.at == "first-step":
            return inner(*args)[:, :, :1]
        if self.calls == 1:
            self._raise_at("first-step")
        if self.calls == 4:
            self._raise_at("middle-step")
        return inner(*args)

    def attention(self, inner, site, *args):
        self._raise_at("attention")
        return inner(*args)

    def decode(self, inner, site, *args):
        if self.kind == "shape":
            return inner(*args)[:, :, :1]
        self._raise_at("decode")
        return inner(*args)


@hookimpl
def wf_fusion(feature, options, facts):
    if feature == "bystander":
        return Bystander()
    if feature == "global-precision":
        return GlobalPrecision(options["value"])
    return Chaos(options["at"], options["kind"])
"""


def write_chaos(root: Path) -> Path:
    return write_plugin(root, "fusion-chaos", CHAOS_MANIFEST, CHAOS_CODE)
