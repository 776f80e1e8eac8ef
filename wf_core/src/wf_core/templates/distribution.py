"""A new plugin's distribution: its names, the text of its files, and writing them all or none.

The files lie beside this module, in ``common`` and in one folder per kind, as ``NAME.template``: `string.Template`
with the fields of `NewPlugin.fields`. ``package/`` is the import package. A model family starts as the toy family
under another name, so its model, adapter, bench and manifest are those of `wf_core.testing.toy`.
"""

from __future__ import annotations

import os
import re
import shutil
import tomllib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from string import Template

import attrs

from wf_core import __version__
from wf_core.errors import BadInput
from wf_core.manifests.manifest import FILE_NAME
from wf_core.names import did_you_mean, normalise, switch_key

FOLDER = Path(__file__).parent
COMMON = "common"
SUFFIX = ".template"
ABOUT = f"about.md{SUFFIX}"
KINDS = tuple(sorted(path.name for path in FOLDER.iterdir() if (path / ABOUT).is_file()))
PREFIX = "wf-plugin-"
NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
LONGEST = 30
"""Of a name: longer ones would not fit into the lines that hold it."""
TOY = FOLDER.parent / "testing" / "toy"
OF_TOY = ("family.py", "model.py", "trial.py", FILE_NAME)
DEPENDENCIES = {"model-source": ("diffusers>=0.42", "tokenizers", "transformers>=5")}


@attrs.frozen
class NewPlugin:
    """A plugin that is not there yet: its name, in normal form, and its kind. `check` has accepted both."""

    name: str
    kind: str

    @property
    def distribution(self) -> str:
        """The name under which it is installed; its folder has the same."""
        return PREFIX + self.name

    @property
    def package(self) -> str:
        """The name under which it is imported."""
        return switch_key(self.distribution)

    def files(self) -> dict[str, str]:
        """The text of each file, by its path below the distribution's folder."""
        texts = dict(self._rendered(self.kind))
        if self.kind == "model-family":
            texts |= {f"src/{self.package}/{name}": self._of_toy(name) for name in OF_TOY}
        manifest = tomllib.loads(texts[f"src/{self.package}/{FILE_NAME}"])
        texts |= self._rendered(
            COMMON, summary=manifest["summary"], about=self._filled(FOLDER / self.kind / ABOUT).strip()
        )
        return dict(sorted(texts.items()))

    def fields(self) -> dict[str, str]:
        """What stands in for each placeholder of a template."""
        core = f"wf-core{core_range()}"
        needs = sorted((*DEPENDENCIES.get(self.kind, ()), "torch>=2.11", core))
        return {
            "name": self.name,
            "key": switch_key(self.name),
            "distribution": self.distribution,
            "package": self.package,
            "class_prefix": _camel(self.name),
            "conformance": f"{_camel(self.kind)}Conformance",
            "dependencies": ", ".join(f'"{need}"' for need in needs),
            "core_range": core_range(),
        }

    def _rendered(self, folder: str, **more: str) -> Iterator[tuple[str, str]]:
        root = FOLDER / folder
        for path in root.rglob(f"*{SUFFIX}"):
            where = path.relative_to(root).as_posix().removesuffix(SUFFIX)
            if path.name != ABOUT:
                yield re.sub("^package/", f"src/{self.package}/", where), self._filled(path, **more)

    def _filled(self, path: Path, **more: str) -> str:
        return Template(path.read_text(encoding="utf-8")).substitute(self.fields(), **more)

    def _of_toy(self, name: str) -> str:
        text = (TOY / name).read_text(encoding="utf-8").replace("wf_core.testing.toy", self.package)
        # There the core is another's package, and this one's own imports stand apart.
        text = re.sub(r"\n(\nfrom wf_core\.api .*\n)(?=from)", r"\1\n", text)
        text = re.sub(r"\bToy(?=[A-Z])", _camel(self.name), text)
        return re.sub(r"\btoy\b", self.name, text)


def check(name: str, kind: str) -> NewPlugin:
    """The plugin of that name and kind. Raises `BadInput` where there can be none."""
    if kind not in KINDS:
        hint = did_you_mean(kind[:LONGEST], KINDS)
        raise BadInput(f"there is no template for the kind {kind[:LONGEST]!r}{hint} ({', '.join(KINDS)})")
    if len(name) > LONGEST:
        raise BadInput(f"the name {name[:LONGEST]!r}... is longer than {LONGEST} characters")
    normal = normalise(name)
    if normal.startswith(PREFIX):
        raise BadInput(f"{name!r}: the distribution is called {PREFIX}NAME, leave {PREFIX!r} out of the name")
    if not NAME.fullmatch(name):
        hint = f"; write {normal}" if NAME.fullmatch(normal) else ""
        raise BadInput(f"{name!r} is no name of a plugin: lower-case letters, digits, single hyphens{hint}")
    return NewPlugin(name, kind)


def core_range() -> str:
    """The versions of the core that a plugin written today works with: ``>=0.1,<0.2``, from 1.0 on ``>=1.4,<2``."""
    major, minor = (int(part) for part in __version__.split(".")[:2])
    return f">=0.{minor},<0.{minor + 1}" if major == 0 else f">={major}.{minor},<{major + 1}"


def write(plugin: NewPlugin, parent: Path) -> Path:
    """The distribution's folder, new in ``parent``. Raises `BadInput`, and leaves nothing, where it cannot be made."""
    target = parent / plugin.distribution
    if not parent.is_dir():
        raise BadInput(f"cannot write {target}: {parent} is no folder; make it first")
    if os.path.lexists(target):
        raise BadInput(
            f"cannot write {target}: it is there already; choose another name, or another folder with --out"
        )
    texts = plugin.files()
    try:
        with _unfinished(parent, plugin.distribution) as folder:
            _write(folder, texts)
            folder.rename(target)
    except OSError as error:
        raise BadInput(f"cannot write {target}: {error.strerror or error}") from None
    return target


@contextmanager
def _unfinished(parent: Path, name: str) -> Iterator[Path]:
    """A new folder beside the one to be; taken away unless it was renamed."""
    folder = parent / f".{name}-{os.urandom(4).hex()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    for where, text in texts.items():
        path = folder / where
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")


def _camel(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))
