"""``wf``: the command line. Commands are imported when they are called, so that none pays for another."""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Callable
from importlib import import_module
from typing import TYPE_CHECKING, Any

import click

from wf_core.values import clipped

if TYPE_CHECKING:
    from wf_core.cli.answer import Answer

COMMANDS = {
    "calibrate": ("calibrate", "Measure a model and write the preset that a feature accepts."),
    "check": ("check", "Every check of the conformance kit on an installed plugin."),
    "compare": ("compare", "The plain run and the accelerated run side by side, with what was lost."),
    "doctor": ("doctor", "What this machine can run, and why not the rest."),
    "list-plugins": ("list_plugins", "Every installed plugin with its state and reason."),
    "matrix": ("matrix", "Every pair of features for a model: legal, untested or refused."),
    "new-plugin": ("new_plugin", "A distribution for a plugin of your own, that works as written."),
    "resolve": ("resolve", "Judge a request for a model, without loading it."),
    "run": ("run", "A clip from a prompt, and the report of what took effect."),
    "show": ("show", "Everything that a feature declares."),
    "verify": ("verify", "What plugins compute here, measured against float64."),
    "why": ("why", "Why a feature cannot be used, or two cannot be used together."),
}


_UNSEEN = {
    number: f"\\x{number:02x}" for number in (*range(9), *range(14, 28), *range(127, 160)) if number != 0x85
}
"""Control characters: a message that quotes one would be obeyed by a terminal. Those that are blanks stay blanks."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own; each module has one ``command``."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"wf_core.cli.{COMMANDS[cmd_name][0]}").command
        return command if isinstance(command, click.Command) else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The list in ``wf --help``, from the table above: no command is imported for it."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in self.list_commands(ctx)])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        from wf_core.names import did_you_mean

        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            ctx.fail(f"no command {args[0]!r}{did_you_mean(args[0], COMMANDS)}")
        return super().resolve_command(ctx, args)

    def main(self, *args: Any, **extra: Any) -> Any:
        """Runs a command and ends the process: 0 done, 2 refused or bad input, 1 a fault of the host."""
        run: Callable[..., Any] = super().main
        alone = extra.pop("standalone_mode", True)
        extra["standalone_mode"] = False
        if not alone:
            return run(*args, **extra)
        from wf_core.cli.answer import answering, open_closed_streams, wanted

        open_closed_streams()
        _write_whatever_is_there()
        given = extra.get("args", args[0] if args else None)
        if not wanted(sys.argv[1:] if given is None else given):
            sys.exit(_run(run, None, *args, **extra))
        with answering() as answer:
            code = _run(run, answer, *args, obj=answer, **extra)
        sys.exit(code)


def _write_whatever_is_there() -> None:
    """Names of files need not be text; a command that prints one does not end for it."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _run(run: Callable[..., Any], answer: Answer | None, *args: Any, **extra: Any) -> int:
    from wf_core.errors import Refused, WfError

    try:
        code = run(*args, **extra)
    except click.exceptions.NoArgsIsHelpError as error:
        click.echo(error.format_message())
        return _say("no command was given", 2)
    except click.ClickException as error:
        return _say(error.format_message(), 2, answer)
    except Refused as error:
        if answer is not None:
            answer.give(error.refusal.to_json())
        return _say(str(error), 2)
    except WfError as error:
        return _say(str(error), 2, answer)
    except (KeyboardInterrupt, click.Abort):
        return _say("interrupted", 130, answer)
    except Exception as error:
        if isinstance(error, OSError) and error.errno == errno.ENAMETOOLONG:
            return _say(f"{error.filename}: {error.strerror}", 2, answer)
        return _fault(error, answer)
    return code if isinstance(code, int) else 0


def _say(message: str, code: int, answer: Answer | None = None) -> int:
    """One line on stderr, whatever the message holds, and the same as the answer where JSON was asked for."""
    line = clipped(" ".join(message.translate(_UNSEEN).split()))
    if answer is not None:
        answer.give({"schema": 1, "error": line})
    click.echo(f"wf: {line}", err=True)
    return code


def _fault(error: Exception, answer: Answer | None) -> int:
    if os.environ.get("WF_DEBUG", "") not in ("", "0"):
        import traceback

        traceback.print_exception(error)
    told = getattr(error, "__notes__", ())
    who = "; ".join(told) if told else "a fault of the host"
    return _say(f"{who}: {type(error).__name__}: {error} (WF_DEBUG=1 shows where)", 1, answer)


def _version(ctx: click.Context, parameter: click.Parameter, value: bool) -> None:
    if value and not ctx.resilient_parsing:
        from wf_core import __version__

        click.echo(f"wf-core {__version__}")
        ctx.exit()


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.option(
    "--version", is_flag=True, is_eager=True, expose_value=False, callback=_version, help="Print the version."
)
def main() -> None:
    """A plugin host that accelerates open video diffusion models, and proves that it did."""
