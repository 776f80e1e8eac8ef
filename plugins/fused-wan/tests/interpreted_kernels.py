"""The kernels in Triton's interpreter, on the CPU: run with TRITON_INTERPRET=1, prints one JSON object.

In fp16 and fp32 only, as the interpreter truncates where bfloat16 should be rounded. For each case: the errors of
kernel and reference against float64 (relative L2), and whether they are equal.
"""

from __future__ import annotations

import json
import sys

import stock_typed
import torch

from wf_plugin_fused_wan import gate, gated_residual, norm_modulate, norm_rope
from wf_plugin_fused_wan.modulation import FusedModulation
from wf_plugin_fused_wan.norm_rope import Form

EPS = 1e-6
DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
SHAPES = [(2, 5, 48), (1, 3, 100), (1, 2, 5120)]
FOUND: dict[str, object] = {}


def compare(name, module, *args):
    assert module.ineligible(*args) == "", module.ineligible(*args)
    ours, reference, exact = module.launch(*args), module.reference(*args), module.reference(*exactly(args))
    pairs = (
        [(ours, reference, exact)]
        if isinstance(ours, torch.Tensor)
        else zip(ours, reference, exact, strict=True)
    )
    found = [
        {
            "ours": float((a.double() - e).norm() / e.norm()),
            "reference": float((b.double() - e).norm() / e.norm()),
            "equal": torch.equal(a, b),
            "contiguous": a.is_contiguous() and a.shape == b.shape and a.dtype == b.dtype,
        }
        for a, b, e in pairs
    ]
    FOUND[name] = found


def exactly(args):
    """The reference computes in fp32 whatever it is given: exact results come from the same text in float64."""
    return [Doubles.of(x) for x in args]


class Doubles(torch.Tensor):
    """A float64 tensor that stays float64 under ``.float()`` and ``.type_as()``."""

    @staticmethod
    def of(x):
        return x.double().as_subclass(Doubles) if isinstance(x, torch.Tensor) and x.is_floating_point() else x

    def float(self):
        return self

    def type_as(self, other):
        return self.as_subclass(torch.Tensor)


def modulation(kind, dtype):
    for batch, tokens, width in SHAPES if dtype == torch.float32 else SHAPES[:2]:
        packed = torch.randn(batch, tokens, 3 * width).to(dtype)
        x, out = packed[..., width : 2 * width], packed[..., :width]
        one, dense = torch.randn(batch, 6, width), torch.randn(batch, tokens, 6, width)
        few, index = torch.randn(batch, 2, 6, width), torch.randint(0, 2, (batch, tokens))
        rows = {
            "shared": (*one.chunk(6, dim=1)[:3], None),
            "per-token": (*(dense[:, :, i] for i in range(3)), None),
            "by-index": (*(few[:, :, i] for i in range(3)), index),
        }
        for how, (scale, shift, gates, at) in rows.items():
            compare(f"norm {kind} {width} {how}", norm_modulate, x, None, None, scale, shift, at, EPS)
            compare(f"residual {kind} {width} {how}", gated_residual, x, out, gates, at)
        modulation_in(dtype, kind, x, out, one.chunk(6, dim=1)[:3], "row")
        modulation_in(dtype, kind, x, out, [dense[:, :, i] for i in range(3)], "rows")
        affine = torch.randn(width), torch.randn(width)
        compare(f"norm {kind} {width} affine", norm_modulate, x, *affine, None, None, None, EPS)
        compare(f"norm {kind} {width} alone", norm_modulate, x, None, None, None, None, None, EPS)
        compare(f"residual {kind} {width} no gate", gated_residual, x, out, None, None)
        across = x.mT.contiguous().mT
        compare(
            f"norm {kind} {width} across", norm_modulate, across, None, None, *one.chunk(6, 1)[:2], None, EPS
        )
        compare(f"residual {kind} {width} gate across", gated_residual, across, across, one[:, :1], None)
        for gates in (None, one[:, :1]):
            expected, own = gated_residual.reference(x, out, gates, None), x.contiguous().clone()
            result = gated_residual.launch(own, out, gates, None, True)
            FOUND["in place"] = FOUND.get("in place", True) and result is own and torch.equal(own, expected)


def modulation_in(dtype, kind, x, out, rows, how):
    """Cosmos and HunyuanVideo: rows in the model's dtype, beside stock expressions with a rounding after each step."""
    scale, shift, gates = (row.to(dtype) for row in rows)
    norm = torch.nn.LayerNorm(x.shape[-1], eps=EPS, elementwise_affine=False)
    wide = [tensor.double() for tensor in (x, out, scale, shift, gates)]
    typed = {
        "norm": (
            norm_modulate.launch(x, None, None, scale, shift, None, EPS),
            stock_typed.norm_modulate(norm, x, scale, shift),
            stock_typed.norm_modulate(norm, wide[0], *wide[2:4]),
        ),
        "residual": (
            gated_residual.launch(x, out, gates, None),
            stock_typed.gated_residual(x, out, gates),
            stock_typed.gated_residual(wide[0], wide[1], wide[4]),
        ),
    }
    for name, (ours, stock, exact) in typed.items():
        errors = [float((found.double() - exact).norm() / exact.norm()) for found in (ours, stock)]
        FOUND.setdefault(f"typed {kind}", []).append([name, how, *errors, str(ours.dtype)])


def rotation(kind, dtype):
    forms = {
        "interleaved": (5, 5, Form(3, (EPS, 1e-5)), 16),
        "interleaved fp64": (5, 5, Form(3, (EPS, 1e-5), double=True), 16),
        "halves": (4, 4, Form(5, (EPS, EPS), pairing="halves"), 12),
        "per head": (5, 5, Form(3, (EPS, EPS), per_head=True), 12),
        "padded": (6, 6, Form(3, (EPS, EPS), offset=4, valid=8), 8),
        "14B": (2, 2, Form(40, (EPS, EPS)), 128),
        "cross": (5, 3, Form(3, (EPS, EPS)), 16),
    }
    for how, (queries, keys, form, head) in forms.items():
        width = form.heads * head
        query = torch.randn(2, queries, 2 * width).to(dtype)[..., width:]
        key = torch.randn(2, keys, 3 * width).to(dtype)[..., :width]
        weights = [torch.randn(head if form.per_head else width) for _ in range(2)]
        tables = (None, None) if how == "cross" else rope_tables(form, head)
        compare(f"rope {kind} {how}", norm_rope, query, key, *weights, *tables, form)
        if how == "halves":
            compare(f"rope {kind} {how} no weight", norm_rope, query, key, None, None, *tables, form)


def rotation_by_head(kind, dtype):
    """HunyuanVideo and Cosmos: norms of each head that round, on slices of a tensor of image and text tokens."""
    hunyuan, cosmos = (
        {"per_head": True, "rounds": True},
        {"per_head": True, "rounds": True, "pairing": "halves"},
    )
    forms = {
        "hunyuan": (Form(3, (EPS, 1e-5), **hunyuan), 10),
        "hunyuan text": (Form(3, (EPS, 1e-5), **hunyuan), 10),
        "hunyuan published": (Form(24, (EPS, EPS), **hunyuan), 128),
        "cosmos": (Form(2, (EPS, EPS), **cosmos), 12),
        "cosmos no weight": (Form(2, (EPS, EPS), **cosmos), 12),
        "cosmos fp64": (Form(2, (EPS, EPS), **cosmos, double=True), 12),
        "cosmos published": (Form(16, (EPS, EPS), **cosmos), 128),
    }
    for how, (form, head) in forms.items():
        joint = torch.randn(2, 3, 3 * form.heads * head).to(dtype).chunk(3, dim=-1)
        query, key = (x[:, 2:] if "text" in how else x[:, :2] for x in joint[:2])
        weights = [None if "no weight" in how else (torch.randn(head) + 1).to(dtype) for _ in range(2)]
        tables = [None if "text" in how else table.reshape(-1, head) for table in rope_tables(form, head)]
        compare(f"rope {kind} {how}", norm_rope, query, key, *weights, *tables, form)


def rope_tables(form, head):
    """cos and sin as models have them, for 12 tokens; NaN in the columns that are not to be read."""
    angles = torch.rand(12, head // 2) * 20
    cos, sin, rest = angles.cos(), angles.sin(), torch.full_like(angles, torch.nan)
    if form.pairing == "halves":
        return torch.cat([cos, rest], -1), torch.cat([sin, rest], -1)
    pairs = torch.stack([cos, rest], -1), torch.stack([rest, sin], -1)
    return tuple(pair.flatten(-2)[None, :, None] for pair in pairs)


class Counts:
    def __init__(self):
        self.seen = {}

    def add(self, name, amount=1):
        self.seen[name] = self.seen.get(name, 0) + amount


def technique():
    """The handlers, counting calls of real kernels."""
    ours = FusedModulation()
    ours.counters = Counts()
    x, norm = torch.randn(1, 3, 48), torch.nn.LayerNorm(48)
    ours.norm_modulate(None, None, norm, x, None, None)
    ours.gated_residual(None, None, x, x, None)
    ours.gated_residual(None, None, x, x, torch.randn(1, 1, 48))
    FOUND["counters"] = ours.counters.seen


@torch.no_grad()
def main():
    torch.manual_seed(0)
    FOUND["gate"] = gate.why_not(torch.device("cpu"))
    for kind, dtype in DTYPES.items():
        modulation(kind, dtype)
        rotation(kind, dtype)
        rotation_by_head(kind, dtype)
    technique()
    sys.stdout.write(json.dumps(FOUND))


if __name__ == "__main__":
    main()
