"""``--device``, ``--world`` and the size of a clip: the machine and the call for which a command judges."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import attrs
import click

from wf_core.facts.machines import THIS, machine_names

Command = Callable[..., Any]
CALL: dict[str, Callable[..., Any]] = {
    "height": click.option("--height", type=int, default=None, help="Pixels."),
    "width": click.option("--width", type=int, default=None, help="Pixels."),
    "num_frames": click.option("--frames", "num_frames", type=int, default=None, help="Frames of the clip."),
    "num_inference_steps": click.option(
        "--steps", "num_inference_steps", type=int, default=None, help="Denoising steps."
    ),
    "guidance_scale": click.option(
        "--guidance", "guidance_scale", type=float, default=None, help="Guidance scale."
    ),
}


@attrs.frozen
class Machine:
    """What the options say: arguments of `Host.facts` and `Host.resolve`."""

    family: str | None = None
    device: str = THIS
    world: int | None = None
    process_group: bool | None = None

    def arguments(self) -> dict[str, Any]:
        """As keywords."""
        return attrs.asdict(self)


def machine_options(command: Command) -> Command:
    """Adds the options; the command gets them as ``machine``."""

    @functools.wraps(command)
    def wrapped(
        *args: Any, family: str | None, device: str, world: int | None, no_process_group: bool, **kwargs: Any
    ) -> Any:
        group = False if no_process_group else None
        return command(*args, machine=Machine(family, device, world, group), **kwargs)

    options = (
        click.option("--family", default=None, help="The model's family, when MODEL is only an id."),
        click.option(
            "--device",
            default=THIS,
            show_default=True,
            metavar="NAME",
            help=f"The machine to judge for: {', '.join(machine_names())}.",
        ),
        click.option("--world", type=click.IntRange(min=1), default=None, help="Processes of the run."),
        click.option(
            "--no-process-group", is_flag=True, help="Judge as if the process group were not initialised yet."
        ),
    )
    return _with(options, wrapped)


def call_options(command: Command) -> Command:
    """Adds the arguments of a call; the command gets those that were given as ``call``."""

    @functools.wraps(command)
    def wrapped(*args: Any, **kwargs: Any) -> Any:
        call = {name: kwargs.pop(name) for name in CALL}
        return command(*args, call={key: value for key, value in call.items() if value is not None}, **kwargs)

    return _with(tuple(CALL.values()), wrapped)


def processes(world: int | None) -> str:
    """``1 process``, ``4 processes``."""
    return "1 process" if world in (1, None) else f"{world} processes"


def _with(options: tuple[Callable[..., Any], ...], command: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(options):
        command = option(command)
    return command
