"""The table of contents of the plugin API: one hook per kind.

Each hook is called on the one plugin that owns the chosen feature, once when a session is built, never per step. The
hot path calls what the hook returned. A plugin implements the hooks of its kind as module-level functions of its
top-level package, marked with ``wf_core.api.hookimpl``, and imports torch inside them.

``feature`` is the feature's name, ``options`` its validated options as a mapping, ``facts`` a ``wf_core.api.Facts``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pluggy

from wf_core.errors import WfError

if TYPE_CHECKING:
    from wf_core.facts import Facts
    from wf_core.kinds.caching.runtime import FeatureCache
    from wf_core.kinds.calibration import Calibrator
    from wf_core.kinds.scoring import PromptScorer
    from wf_core.kinds.techniques import AttentionProvider, Technique, VaeDecoder
    from wf_core.model.family import ModelFamily

PROJECT = "wf"
PASSED_ON = (WfError,)
"""Errors of a hook that reach the caller as they are; any other becomes a ``PluginFault``."""
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


# --- models: called before any session ------------------------------------------------------------------------------


@hookspec(firstresult=True)
def wf_model_family() -> ModelFamily:
    """The adapter of the model family that this plugin provides. Called once per host."""


@hookspec(firstresult=True)
def wf_model_source(name: str) -> Path:
    """The checkpoint directory, in diffusers layout, of a model that the manifest names without a ``path``."""


@hookspec(firstresult=True)
def wf_prompt_scorer(name: str) -> PromptScorer | None:
    """What tells whether clips of a model of this plugin show what their prompts ask for; None where nothing can.

    Optional. Called by ``wf compare``, once.
    """


# --- techniques: called when a session is built ---------------------------------------------------------------------


@hookspec(firstresult=True)
def wf_attention_provider(feature: str, options: Mapping[str, Any], facts: Facts) -> AttentionProvider:
    """A provider for the ``attention`` seam."""


@hookspec(firstresult=True)
def wf_feature_cache(feature: str, options: Mapping[str, Any], facts: Facts) -> FeatureCache:
    """A cache at one seam: the ``stack`` of blocks, or another that its manifest declares."""


@hookspec(firstresult=True)
def wf_sparse_kernel(feature: str, options: Mapping[str, Any], facts: Facts) -> AttentionProvider:
    """An approximate provider for the ``attention`` seam."""


@hookspec(firstresult=True)
def wf_quantizer(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that replaces linear layers of the session's copy."""


@hookspec(firstresult=True)
def wf_vae_decoder(feature: str, options: Mapping[str, Any], facts: Facts) -> VaeDecoder:
    """A technique around, or in place of, the VAE's decoding."""


@hookspec(firstresult=True)
def wf_parallel_strategy(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that spreads the computation over ranks."""


@hookspec(firstresult=True)
def wf_placement(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that decides where parameters live."""


@hookspec(firstresult=True)
def wf_execution_mode(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that compiles or captures, sealed last, or that sets a mode of the process or of the weights."""


@hookspec(firstresult=True)
def wf_fusion(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that computes inner seams by fused kernels."""


@hookspec(firstresult=True)
def wf_adapter(feature: str, options: Mapping[str, Any], facts: Facts) -> Technique:
    """A technique that merges adapter weights into the session's copy."""


# --- calibration: called by ``wf calibrate`` ------------------------------------------------------------------------


@hookspec(firstresult=True)
def wf_calibrator(feature: str, options: Mapping[str, Any], facts: Facts) -> Calibrator:
    """A measuring technique that runs every step densely and ends in a preset for the feature."""


HOOK_OF_KIND = {
    "model-family": "wf_model_family",
    "model-source": "wf_model_source",
    "attention-provider": "wf_attention_provider",
    "feature-cache": "wf_feature_cache",
    "sparse-kernel": "wf_sparse_kernel",
    "quantizer": "wf_quantizer",
    "vae-decoder": "wf_vae_decoder",
    "parallel-strategy": "wf_parallel_strategy",
    "placement": "wf_placement",
    "execution-mode": "wf_execution_mode",
    "fusion": "wf_fusion",
    "adapter": "wf_adapter",
}
