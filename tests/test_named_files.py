"""Files that a request names: judged by their header beside a real checkpoint, unknown beside a profile."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from wf_core import Host, Plan, Refused


def preview(folder: Path, channels: int, tensor: str = "decoder.1.weight") -> str:
    """A file with the first convolution of a preview decoder for latents of that many channels."""
    path = folder / "taew.safetensors"
    save_file({tensor: torch.zeros(8, channels, 3, 3)}, path)
    return str(path)


def resolve(host: Host, path: str, model: str = "tiny-wan") -> Plan:
    return host.resolve(model, {"vae_preview_decoder_path": path})


def refused(host: Host, path: str) -> list[tuple[str, str]]:
    with pytest.raises(Refused) as caught:
        resolve(host, path)
    return [(violation.code, violation.reason) for violation in caught.value.refusal.violations]


def test_a_file_for_the_models_latents_is_legal(host: Host, tmp_path: Path) -> None:
    path = preview(tmp_path, 16)
    plan = resolve(host, path)
    used = {name: (value, source) for name, value, source in plan.facts_used}
    assert used["file.vae-preview.path"] == (True, path)
    assert used["preview.latent_channels"] == (16, path)
    assert plan.unknown() == ()


def test_a_file_that_is_not_there(host: Host, tmp_path: Path) -> None:
    [(code, reason)] = refused(host, str(tmp_path / "none.safetensors"))
    assert (code, "names no file that exists" in reason) == ("WF-V006", True)


def test_a_file_for_other_latents(host: Host, tmp_path: Path) -> None:
    [(code, reason)] = refused(host, preview(tmp_path, 48))
    assert (code, "takes latents of 48 channels" in reason) == ("WF-V007", True)


@pytest.mark.parametrize("content", [b"", b"no header at all", b"\x10\x00\x00\x00\x00\x00\x00\x00{}"])
def test_a_file_that_is_no_decoder(host: Host, tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "other.safetensors"
    path.write_bytes(content)
    [(code, reason)] = refused(host, str(path))
    assert (code, "holds no preview decoder" in reason) == ("WF-V007", True)


def test_a_file_without_the_tensor(host: Host, tmp_path: Path) -> None:
    assert [code for code, _ in refused(host, preview(tmp_path, 16, "other"))] == ["WF-V007"]


def test_a_folder_is_no_decoder(host: Host, tmp_path: Path) -> None:
    assert [code for code, _ in refused(host, str(tmp_path))] == ["WF-V007"]


def test_beside_a_profile_files_are_somewhere_else(host: Host, tmp_path: Path) -> None:
    for path in (str(tmp_path / "none.safetensors"), preview(tmp_path, 48)):
        plan = resolve(host, path, "wan2.1-t2v-1.3b")
        assert plan.unknown() == ("file.vae-preview.path", "preview.latent_channels")


def test_what_is_off_is_not_looked_at(host: Host) -> None:
    assert resolve(host, "none").features == ()
