"""Options that several commands share, declared once."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ddtree_ops.cli.world import Target
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.host import Host
from ddtree_ops.run.context import Asked

Hosts = Annotated[
    list[str],
    typer.Option(
        "--host", help="Inventory name, group, ssh_config alias, user@addr:port, or lab; repeatable."
    ),
]
InventoryFile = Annotated[Path | None, typer.Option("--inventory", help="Inventory file.")]
Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout, nothing else there.")]
Verbose = Annotated[bool, typer.Option("--verbose", help="Also SSH round trips and seconds.")]
Yes = Annotated[bool, typer.Option("--yes", help="Answer the plan's question beforehand.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show the plan with its diffs; touch nothing.")]
ProfileName = Annotated[str | None, typer.Option("--profile", help="Profile of the inventory.")]
Service = Annotated[str | None, typer.Option("--service", help="Unit name, when the inventory does not say.")]
Budget = Annotated[int | None, typer.Option("--budget", help="Draft-tree nodes without the root.")]
Topk = Annotated[int | None, typer.Option("--topk", help="Most children of a tree node.")]
CudaGraph = Annotated[bool | None, typer.Option("--cuda-graph/--no-cuda-graph", help="Graph mode.")]
Patches = Annotated[str | None, typer.Option("--patches", help="Patch sets, comma-separated, or none.")]
AcceptModified = Annotated[
    bool, typer.Option("--accept-modified", help="Go on over sources that differ from their wheel.")
]
KeepGoing = Annotated[bool, typer.Option("--keep-going", help="Go on with other nodes after a failure.")]
Lease = Annotated[
    float | None,
    typer.Option("--lease", min=5.0, help="Seconds that the node waits for its operator before it reverts."),
]


def patch_names(text: str | None) -> tuple[str, ...] | None:
    """`a,b` as names, `none` as no sets, None as not said."""
    if text is None:
        return None
    return () if text == "none" else tuple(name.strip() for name in text.split(",") if name.strip())


def consent(question: str, *, yes: bool) -> None:
    """Returns when the operator agrees; UsageError where there is nobody to ask, Refused on a no."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("--yes", "got no terminal to ask on, expected --yes")
    if not typer.confirm(question, default=False, err=True):
        raise Refused("consent", "got no consent, expected a yes", hint="--yes answers beforehand")


def asked_of(
    target: Target, profile: str | None, service: str | None, lease_s: float | None, asked: Asked
) -> tuple[Host, Asked]:
    """What was asked, completed with the host's own profile and service."""
    name = profile or target.host.profile
    found = target.inventory.profile(name) if name else None
    host = target.host if lease_s is None else replace(target.host, lease_s=lease_s)
    return host, replace(asked, profile=found, service=service or target.host.service)
