"""`lab`: nodes to work on, embedded ones anywhere, real systemd hosts under root on Linux."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import asdict
from typing import Annotated

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.lab.hosts import Kind, Lab, LabHost
from ddtree_ops.lab.kinds import open_lab
from ddtree_ops.lab.systemd.lab import why_not
from ddtree_ops.model.errors import UsageError

app = typer.Typer(no_args_is_help=True, help="Nodes to work on: up, down, status, ssh.")

KindOption = Annotated[
    Kind | None, typer.Option("--kind", help="embedded, or systemd (root on Linux; the default there).")
]


@app.command()
def up(
    kind: KindOption = None,
    count: Annotated[int, typer.Option("--count", min=1, max=16, help="Nodes.")] = 1,
    json: opt.Json = False,
) -> None:
    """Boot nodes with a running engine each; what is up already stays."""
    chosen = kind or (Kind.EMBEDDED if why_not() else Kind.SYSTEMD)
    if kind is None and chosen is Kind.EMBEDDED:
        print(f"lab: embedded nodes with a stand-in for systemd, since {why_not()}", file=sys.stderr)
    lab = open_lab(chosen)
    _show(lab.up(count), json)
    print(f"lab: inventory {lab.inventory}", file=sys.stderr)


@app.command()
def down(kind: KindOption = None) -> None:
    """End every process and remove every file of the lab's nodes."""
    for each in _kinds(kind):
        open_lab(each).down()


@app.command()
def status(kind: KindOption = None, json: opt.Json = False) -> None:
    """List the nodes that are up."""
    _show(tuple(host for each in _kinds(kind) for host in open_lab(each).status()), json)


@app.command()
def ssh(
    name: Annotated[str, typer.Argument(help="A node's name.")],
    command: Annotated[list[str] | None, typer.Argument(help="A command; none: a shell.")] = None,
) -> None:
    """Log in to a node with the system's own ssh."""
    lab, host = _find(name)
    argv = (
        "ssh", "-p", str(host.port), "-i", str(host.identity_file), "-o", "IdentitiesOnly=yes",
        "-o", f"UserKnownHostsFile={host.known_hosts}", f"{host.user}@{host.address}", *(command or ()),
    )  # fmt: skip
    raise typer.Exit(subprocess.run(lab.operator(argv), check=False).returncode)


def _find(name: str) -> tuple[Lab, LabHost]:
    for kind in Kind:
        lab = open_lab(kind)
        for host in lab.status():
            if host.name == name:
                return lab, host
    known = ", ".join(host.name for kind in Kind for host in open_lab(kind).status()) or "none"
    raise UsageError("lab", f"got node {name!r}, expected one of: {known}", hint="ddtree-ops lab up")


def _kinds(kind: Kind | None) -> tuple[Kind, ...]:
    return tuple(Kind) if kind is None else (kind,)


def _show(hosts: tuple[LabHost, ...], as_json: bool) -> None:
    if as_json:
        print_json({"nodes": [asdict(host) for host in hosts], "exit_code": 0})
        return
    for host in hosts:
        login = f"{host.user}@{host.address}:{host.port}"
        state = "up" if host.running else "down"
        print(f"{host.name}  {host.kind}  {login}  {state}  engine port {host.engine_port}")
    if not hosts:
        print("no nodes are up", file=sys.stderr)
