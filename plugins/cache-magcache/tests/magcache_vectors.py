"""The reference vectors and what is made from them: arrays by id, settings by label, and runs to drive."""

from __future__ import annotations

import json
import re
from pathlib import Path

from wf_core.api import Facts
from wf_core.testing import CacheDriver
from wf_plugin_cache_magcache.cache import MagCache
from wf_plugin_cache_magcache.presets import catalogue
from wf_plugin_cache_magcache.settings import Settings, settle

DATA = json.loads((Path(__file__).parent / "data" / "vectors.json").read_text(encoding="utf-8"))
BRANCHES = ("cond", "uncond")


def vector(name):
    return next(row for row in DATA["vectors"] if row["id"] == name)


def arrays(name):
    """The ratios of both branches: a shipped preset's, else the data file's, which may have one branch."""
    preset = catalogue().presets.get(name)
    if preset is not None:
        return {"cond": list(preset.cond), "uncond": list(preset.uncond)}
    row = next(row for row in DATA["arrays"] if row["id"] == name)
    cond = row.get("ratios_cond") or row["ratios"]
    return {"cond": cond, "uncond": row.get("ratios_uncond") or cond}


def label(text):
    """``wan2.1-t2v-1.3b|E0.12K2R0.2`` -> the array's id and the options."""
    found = re.fullmatch(r"(.+)\|(?:diffusers )?E([\d.]+)K(\d+)R([\d.]+)", text)
    options = {"threshold": float(found[2]), "max_skip": int(found[3]), "retention_ratio": float(found[4])}
    return found[1], options


def facts(model="own-wan", **more):
    known = {"model.id": model, "pipeline.class": "WanPipeline", "request.allow_uncalibrated": False}
    return Facts.of(known | {key.replace("__", "."): value for key, value in more.items()}, "test")


def settings(ratios=(1.0, 0.99, 0.99, 0.99), **options) -> Settings:
    return settle({"ratios": tuple(ratios), **options}, facts())


def driver(ratios=(1.0, 0.99, 0.99, 0.99), blocks=(lambda x: x + 1.0,), **options) -> CacheDriver:
    """A cache with these ratios under a driver. Without further options only the longest run of skips, 2, cuts."""
    chosen = {"threshold": 1.0, "retention_ratio": 0.0, **options}
    return CacheDriver(MagCache(settings(ratios, **chosen)), blocks)


def falling(steps):
    """Timesteps of a run, from 1000 down."""
    return [1000.0 - 900.0 * i / steps for i in range(steps)]


def two_experts(high, low):
    return ["transformer"] * high + ["transformer_2"] * low
