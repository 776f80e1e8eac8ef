"""A toy plugin of attention providers: one that is right, and one for each way to be wrong."""

from __future__ import annotations

FEATURE = """
[[feature]]
name = "{name}"
tier = "{tier}"
tolerance = "none: only for tests"
slot = "attention"
seams = ["attention"]
evidence = [{{ counter = "successes", at_least = 1 }}]
select = [{{ switch = "attention_backend", values = ["{name}_kernel"], groups = ["toys"] }}]
example = {{ attention_backend = "{name}" }}
{more}
"""
ONLY_64 = '[[feature.condition]]\nfact = "model.head_dim"\neq = 64\nreason = "heads of 64 only, these have {value}"\n'
FEATURES = {
    "right": ("equivalent", ""),
    "scale": ("equivalent", ""),
    "unmasked": ("equivalent", ""),
    "heads": ("equivalent", ""),
    "tiled": ("equivalent", ""),
    "nan": ("equivalent", ""),
    "silent": ("equivalent", ""),
    "uniform": ("equivalent", ""),
    "stock": ("exact", ""),
    "raises": ("equivalent", ""),
    "absent": ("equivalent", ""),
    "coarse": ("equivalent", ""),
    "lossy": ("approximate", ""),
    "bounded": ("approximate", 'bound = [{ measure = "relative-l2", value = 1e-9 }]'),
    "narrow": ("equivalent", ONLY_64),
    "paper": ("equivalent", 'state = "unavailable: only declared"'),
}
MANIFEST = 'schema = 1\nname = "attention-toys"\napi = 1\nkind = "attention-provider"\n' + "".join(
    FEATURE.format(name=name, tier=tier, more=more) for name, (tier, more) in FEATURES.items()
)
CODE = """
from wf_core.api import hookimpl

@hookimpl
def wf_attention_provider(feature, options, facts):
    import torch
    import torch.nn.functional as F
    from wf_core.api import AttentionProvider, Ineligible

    class Toy(AttentionProvider):
        def prepare(self, components):
            if feature == "absent":
                raise Ineligible("its package does not import")

        def attend(self, query, key, value, mask):
            if feature == "raises":
                raise RuntimeError("no kernel image")
            q, k, v = (x.transpose(1, 2) for x in (query, key, value))
            share = q.shape[1] // k.shape[1]
            if feature == "tiled":
                k, v = (x.repeat(1, share, 1, 1) for x in (k, v))
            else:
                k, v = (x.repeat_interleave(share, dim=1) for x in (k, v))
            scores = q.float() @ k.float().transpose(-1, -2) * q.shape[-1] ** -0.5
            if feature == "scale":
                scores = scores * 1.05
            if feature == "coarse":
                scores = scores.half().float()
            if feature == "lossy":
                scores = (scores * 16).round() / 16
            if mask is not None and feature != "unmasked":
                scores = scores.masked_fill(~mask, -torch.inf)
            weights = scores.softmax(-1)
            out = (weights if feature in ("uniform", "stock") else weights.nan_to_num()) @ v.float()
            if feature in ("uniform", "stock"):
                out = torch.where(out.isnan(), v.float().mean(2, keepdim=True), out)
            if feature == "heads":
                out = out.flip(1)
            if feature == "nan":
                out[:, :, -1] = torch.nan
            if feature == "silent":
                out[:, :, -1] = 0
            return out.transpose(1, 2).to(query.dtype)

    return Toy()
"""
