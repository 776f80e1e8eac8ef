"""One attention provider per feature."""

from __future__ import annotations

from collections.abc import Mapping

from wf_lib_attention.packaged import PackageProvider
from wf_plugin_attention_sage.sage import Sage1, Sage2
from wf_plugin_attention_sage.sage3 import Sage3

PROVIDERS: Mapping[str, type[PackageProvider]] = {"sage1": Sage1, "sage2": Sage2, "sage3": Sage3}
"""Feature name -> provider."""
