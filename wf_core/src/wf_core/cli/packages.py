"""Which optional packages ``wf doctor`` tries to import, and by which module each proves that it works."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata

import attrs

from wf_core.broken_packages import SUSPECTS
from wf_core.names import normalise
from wf_core.plugins.catalog import PACKAGE_FACT, Catalog, Offer

PROOFS = {
    "flash-attn-3": "flash_attn_interface",
    "flash-attn-4": "flash_attn.cute",
    "flashinfer-python": "flashinfer",
    "xformers": "xformers.ops",
}
"""Distribution -> the module that does the work, where it is not the one of the distribution's name."""
DIFFUSERS = "diffusers"


@attrs.frozen
class Package:
    """An installed distribution and the modules that prove it; none where its metadata names none."""

    name: str
    version: str
    modules: tuple[str, ...]


def installed_packages(catalog: Catalog) -> tuple[Package, ...]:
    """The optional packages that usable plugins ask for and, where there is a family to run, those that diffusers
    imports wherever they are installed; diffusers first. Metadata only.
    """
    usable = (offer for offer in catalog.features() if offer.record.state == "available")
    names = {name for offer in usable for name in asked_for(offer)}
    classes = _model_classes(catalog)
    if classes:
        names |= set(SUSPECTS)
    found = [package for name in names if (package := _installed(name)) is not None]
    once = {normalise(package.name): package for package in found}
    model_code = _installed(DIFFUSERS) if classes else once.pop(DIFFUSERS, None)
    once.pop(DIFFUSERS, None)
    first = () if model_code is None else (attrs.evolve(model_code, modules=(DIFFUSERS, *classes)),)
    return (*first, *(once[name] for name in sorted(once)))


def asked_for(offer: Offer) -> Iterator[str]:
    """The packages that a feature's conditions name, in normal form."""
    for condition in offer.feature.conditions:
        for ref in condition.refs():
            if ref.kind == "fact" and ref.name.startswith(PACKAGE_FACT):
                yield normalise(ref.name.removeprefix(PACKAGE_FACT))


def _model_classes(catalog: Catalog) -> tuple[str, ...]:
    """One class of each family, as ``diffusers:WanTransformer3DModel``: importing it needs whatever models need."""
    families = (catalog.family(name) for name in catalog.family_names())
    firsts = (next(iter(family.transformer_classes), "") for family in families if family is not None)
    return tuple(f"{DIFFUSERS}:{name}" for name in firsts if name)


def _installed(name: str) -> Package | None:
    try:
        found = metadata.distribution(name)
        version = found.metadata["Version"]
    except (metadata.PackageNotFoundError, OSError, ValueError, KeyError):
        return None
    return Package(found.metadata["Name"] or name, str(version), _modules(name, found))


def _modules(name: str, found: metadata.Distribution) -> tuple[str, ...]:
    """The module that proves a distribution: known, or of its name, or else every one that it installs."""
    known = PROOFS.get(normalise(name))
    if known is not None:
        return (known,)
    tops = _top_level(found)
    same = tuple(top for top in tops if normalise(top) == normalise(name))
    return same or tops


def _top_level(found: metadata.Distribution) -> tuple[str, ...]:
    listed = (found.read_text("top_level.txt") or "").split()
    files = [path.parts for path in found.files or () if path.suffix == ".py"]
    inferred = [parts[0] if len(parts) > 1 else parts[0].removesuffix(".py") for parts in files]
    names = dict.fromkeys(listed or inferred)
    return tuple(sorted(name for name in names if name.isidentifier() and not name.startswith("_")))
