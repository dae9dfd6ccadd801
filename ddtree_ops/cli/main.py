"""The command line's entry: commands, errors, exit codes."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

import typer

from ddtree_ops import __version__
from ddtree_ops.cli.output import print_error
from ddtree_ops.model.errors import OpsError, UsageError
from ddtree_ops.model.result import INTERRUPTED
from ddtree_ops.run.interrupts import Interrupted

# Click's errors, whether Typer brings Click along or depends on it: the base of BadParameter's base.
CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

COMMANDS = {  # a command, or a group of them → its module in this package
    "deploy": "deploy",
    "plan": "deploy",
    "rollback": "deploy",
    "run": "deploy",
    "probe": "look",
    "status": "look",
    "history": "look",
    "logs": "look",
    "smoke": "smoke",
    "bench": "bench",
    "isolate": "isolate",
    "report": "report",
    "selftest": "selftest",
    "adopt": "hold",
    "unlock": "hold",
    "lab": "lab",
    "patch": "patch",
    "sweep": "sweep",
}


def main() -> None:
    """Runs the command line and ends the process with the contract's exit code."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(words: list[str]) -> int:
    """The exit code of one command line; errors are printed as the command's own output form asks."""
    as_json = "--json" in words
    try:
        code = make_app(words)(words, prog_name="ddtree-ops", standalone_mode=False)
    except OpsError as error:
        print_error(error, as_json=as_json)
        return error.exit_code
    except CLICK_ERROR as error:
        print_error(_usage(error), as_json=as_json)
        return UsageError.exit_code
    except (typer.Abort, KeyboardInterrupt, Interrupted):
        print("interrupted; nothing is under way on any node", file=sys.stderr)
        return INTERRUPTED
    return code if isinstance(code, int) else 0


def make_app(words: Sequence[str]) -> typer.Typer:
    """The commands that these words can mean: the one that they name, or all.

    Most of a short command's time goes into imports, and only measuring needs numpy and scipy.
    """
    app = typer.Typer(
        no_args_is_help=True,
        add_completion=True,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        help="Operate GPU nodes that run SGLang with DDTree speculative decoding.",
    )
    app.callback()(_root)
    first = next((word for word in words if not word.startswith("-")), "")
    for name in (first,) if first in COMMANDS else COMMANDS:
        module = import_module(f"ddtree_ops.cli.{COMMANDS[name]}")
        if hasattr(module, "app"):
            app.add_typer(module.app, name=name)
        else:
            app.command(name)(getattr(module, name))
    return app


def _usage(error: Any) -> UsageError:
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "ddtree-ops --help"
    return UsageError("command line", error.format_message(), hint=hint)


def _version(value: bool) -> None:
    if value:
        print(f"ddtree-ops {__version__}")
        raise typer.Exit


def _root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Operate GPU nodes that run SGLang with DDTree speculative decoding."""
