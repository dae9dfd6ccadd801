"""The command line's entry: commands, errors, exit codes."""

from __future__ import annotations

import sys
from typing import Any

import typer

from ddtree_ops import __version__
from ddtree_ops.cli import bench, deploy, hold, isolate, lab, look, patch, report, selftest, smoke, sweep
from ddtree_ops.cli.output import print_error
from ddtree_ops.model.errors import OpsError, UsageError
from ddtree_ops.model.result import INTERRUPTED
from ddtree_ops.run.interrupts import Interrupted

# Click's errors, whether Typer brings Click along or depends on it: the base of BadParameter's base.
CLICK_ERROR: type[Exception] = typer.BadParameter.__mro__[2]

app = typer.Typer(
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    help="Operate GPU nodes that run SGLang with DDTree speculative decoding.",
)
for command in (
    deploy.deploy,
    deploy.plan,
    deploy.rollback,
    deploy.run,
    look.probe,
    look.status,
    look.history,
    look.logs,
    smoke.smoke,
    bench.bench,
    isolate.isolate,
    report.report,
    selftest.selftest,
    hold.adopt,
    hold.unlock,
):
    app.command()(command)
app.add_typer(lab.app, name="lab")
app.add_typer(patch.app, name="patch")
app.add_typer(sweep.app, name="sweep")


def main() -> None:
    """Runs the command line and ends the process with the contract's exit code."""
    sys.exit(invoke(sys.argv[1:]))


def invoke(words: list[str]) -> int:
    """The exit code of one command line; errors are printed as the command's own output form asks."""
    as_json = "--json" in words
    try:
        code = app(words, prog_name="ddtree-ops", standalone_mode=False)
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


def _usage(error: Any) -> UsageError:
    context = getattr(error, "ctx", None)
    hint = f"{context.command_path} --help" if context is not None else "ddtree-ops --help"
    return UsageError("command line", error.format_message(), hint=hint)


def _version(value: bool) -> None:
    if value:
        print(f"ddtree-ops {__version__}")
        raise typer.Exit


@app.callback()
def root(
    version: bool = typer.Option(
        False, "--version", callback=_version, is_eager=True, help="Print the version."
    ),
) -> None:
    """Operate GPU nodes that run SGLang with DDTree speculative decoding."""
