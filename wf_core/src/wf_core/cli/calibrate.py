"""``wf calibrate FEATURE MODEL``: measure a model and write the preset that the feature accepts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from wf_core.cli.numbers import SEED, Finite
from wf_core.cli.output import print_json

if TYPE_CHECKING:
    from wf_core.host import Host


@click.command("calibrate")
@click.argument("feature")
@click.argument("model")
@click.option("--out", type=click.Path(path_type=Path), required=True, help="The preset to write, as JSON.")
@click.option("--prompt", "prompts", multiple=True, help="A calibration prompt; may be repeated.")
@click.option("--steps", "num_inference_steps", type=int, default=None, help="Solver steps.")
@click.option("--height", type=int, default=None, help="Pixels.")
@click.option("--width", type=int, default=None, help="Pixels.")
@click.option("--frames", "num_frames", type=int, default=None, help="Frames.")
@click.option("--guidance", "guidance_scale", type=Finite(), default=None, help="Guidance scale.")
@click.option("--seed", type=SEED, default=0, show_default=True, help="Seed of the first prompt's noise.")
@click.option("--dtype", default=None, help="float32, bfloat16 or float16.")
@click.option("--device", default="cpu", show_default=True, help="cpu, cuda ...")
@click.option("--json", "as_json", is_flag=True, help="Print the preset on stdout as well.")
def command(
    feature: str,
    model: str,
    out: Path,
    prompts: Sequence[str],
    seed: int,
    dtype: str | None,
    device: str,
    as_json: bool,
    **call: Any,
) -> None:
    """Run MODEL densely over calibration prompts and fit FEATURE's preset to what is seen."""
    from wf_core.checkpoints import check_device_name, check_dtype
    from wf_core.cli.settings import check_text, model_defaults, with_defaults
    from wf_core.errors import BadInput
    from wf_core.host import Host
    from wf_core.media import check_output_path, write_text
    from wf_core.values import json_text

    check_output_path(out)
    check_device_name(device)
    for prompt in prompts:
        check_text("--prompt", prompt)
    host = Host.discover()
    defaults = dict(model_defaults(host, model))
    prompts = prompts or defaults.get("calibration_prompts", ())
    if not prompts:
        raise BadInput(f"{model} declares no calibration prompts; give at least one with --prompt")
    known = with_defaults(call, defaults)
    dtype = check_dtype(dtype or str(defaults.get("dtype", "float32")))
    preset = calibrate(host, feature, model, prompts, known, seed, dtype, device)
    write_text(json_text(preset, indent=2) + "\n", out)
    if as_json:
        print_json(preset)
    else:
        click.echo(
            f"wrote {out}: {len(prompts)} prompts, {preset['calibration']['num_inference_steps']} steps each; "
            f"a preset holds near this number of steps. Use it with -s {feature}.preset={out}"
        )


def calibrate(
    host: Host,
    feature: str,
    model: str,
    prompts: Sequence[str],
    call: Mapping[str, Any],
    seed: int,
    dtype: str,
    device: str,
) -> dict[str, Any]:
    """The preset of ``feature`` for ``model``: the plugin's result, with the checkpoint and the settings."""
    import torch

    from wf_core.checkpoints import checkpoint_hash, load_quietly
    from wf_core.errors import BadInput

    plugin = host.catalog.feature_plugin(feature)
    directory = host.model_directory(model)
    if not host.implements(plugin, "wf_calibrator"):
        raise BadInput(f"{feature} is not calibrated: it has nothing that is measured on a model beforehand")
    checkpoint = checkpoint_hash(directory)
    facts = host.facts(model).with_({"model.checkpoint_hash": checkpoint}, source="the checkpoint's files")
    calibrator = host.call_hook(plugin, "wf_calibrator", feature=feature, options={}, facts=facts)
    pipe = load_quietly(directory, dtype, device)
    with host.session(pipe, {}, extra={"calibrator": calibrator}) as session:
        for number, prompt in enumerate(prompts):
            generator = torch.Generator("cpu").manual_seed(seed + number)
            session.pipe(prompt=prompt, generator=generator, output_type="latent", **call)
    return {
        **calibrator.result(),
        "model": facts.get("model.id"),
        "checkpoint": checkpoint,
        "calibration": {**call, "prompts": list(prompts), "seed": seed, "dtype": dtype},
    }
