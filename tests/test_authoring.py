"""docs/writing-a-plugin.md, as it is written: its plugin is installed, listed, resolved, refused and used."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

from support import models
from wf_core import Refused
from wf_core.manifests.manifest import Manifest
from wf_core.manifests.toml_reader import Table

PAGE = Path(__file__).parents[1] / "docs" / "writing-a-plugin.md"


def blocks():
    found = re.findall(r"```(\w*)\n(.*?)```", PAGE.read_text(), re.S)
    return [text for kind, text in found if kind == "toml"], [
        text for kind, text in found if kind == "python"
    ]


def write(root: Path) -> Path:
    (project, manifest), (code,) = blocks()
    assert 'attention-mine = "wf_plugin_attention_mine"' in project
    package = root / "wf_plugin_attention_mine"
    package.mkdir(parents=True)
    (package / "wf-plugin.toml").write_text(manifest)
    (package / "__init__.py").write_text(code)
    info = root / "wf_plugin_attention_mine-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: wf-plugin-attention-mine\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[wf.plugins]\nattention-mine = wf_plugin_attention_mine\n")
    return root


def test_the_page_is_a_working_plugin(host_with):
    host = host_with(write)
    assert host.discovery.plugin("attention-mine").state == "available"
    pipe = models.p1()
    stock = pipe(**models.call()).frames
    with host.session(pipe, {"attention_backend": "float64"}) as session:
        ours = session.pipe(**models.call()).frames
        claim = session.report["effective"]["attention-float64"]
    assert claim["state"] == "effective"
    assert 0 < float((ours - stock).norm() / stock.norm()) <= 1e-5


def test_its_condition_and_its_option_are_judged(host_with):
    host = host_with(write)
    pipe = models.p1()
    with pytest.raises(Refused, match="device is cuda"):
        host.resolve(pipe, {"attention_backend": "float64"}, facts={"device.type": "cuda"})
    request = {"attention_backend": {"name": "float64", "max_tokens": 9}, "on_ineligible": "dense"}
    with host.session(pipe, request) as session:
        ours = session.pipe(**models.call()).frames
        report = session.report
    assert torch.isfinite(ours).all()
    assert report["effective"]["attention-float64"]["state"] == "partial"
    assert report["fallbacks"][0]["reason"] == "12 keys, and max_tokens is 9"


def test_every_key_that_the_reader_knows_is_on_the_page(host, monkeypatch):
    """Read off the reader itself, while it reads every manifest that is installed."""
    asked = set()

    def raw(self, key, default=None, *, stock=Table.raw):
        asked.add(key)
        return stock(self, key, default)

    monkeypatch.setattr(Table, "raw", raw)
    for record in host.plugins:
        Manifest.load(record.manifest.path)
    assert {"default_with", "suffix_option", "official", "aggregate", "remote"} <= asked
    page = re.sub(r"```.*?```", "", PAGE.read_text(), flags=re.S).partition("## The manifest, key by key")[2]
    written = " ".join(re.findall(r"`([^`]+)`", page))
    assert sorted(key for key in asked if not re.search(rf"\b{key}\b", written)) == []


def test_the_rule_of_the_page_is_read_and_holds(host_with):
    text = PAGE.read_text()
    (rule,) = re.findall(r"```\n(\[\[effect\]\].*?)```", text, re.S)

    def with_rule(root):
        write(root)
        manifest = root / "wf_plugin_attention_mine" / "wf-plugin.toml"
        manifest.write_text(
            manifest.read_text().replace('"inference-only"', '"inference-only", "rewrites-layout"') + rule
        )
        return root

    host = host_with(with_rule)
    on_cpu = {"facts": {"device.type": "cpu"}, "device": "h200"}
    with pytest.raises(Refused) as refused:
        host.resolve("wan2.1-t2v-1.3b", {"attention_backend": "float64", "cuda_graph": True}, **on_cpu)
    assert "ACME-1" in {violation.code for violation in refused.value.refusal.violations}
    assert host.resolve("wan2.1-t2v-1.3b", {"attention_backend": "float64"}, **on_cpu).features
