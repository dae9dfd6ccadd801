"""`patch`: list, check, diff and prove what is done to SGLang's sources."""

from __future__ import annotations

import sys
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json
from ddtree_ops.cli.prove import proven
from ddtree_ops.cli.session import sessions
from ddtree_ops.cli.sources import source_of
from ddtree_ops.cli.world import shipped
from ddtree_ops.model.errors import UsageError
from ddtree_ops.patching.apply import apply_sets, unified_diff
from ddtree_ops.patching.patchset import load, names_in
from ddtree_ops.patching.recognise import State, TreeState, recognise, recognise_node
from ddtree_ops.run import resolve

app = typer.Typer(no_args_is_help=True, help="Patch sets: list, check, diff, prove.")

Version = Annotated[str | None, typer.Option("--sglang", help="A release of SGLang, e.g. 0.5.11.")]
Tree = Annotated[Path | None, typer.Option("--tree", help="A wheel, venv, site-packages or checkout.")]
OneHost = Annotated[list[str] | None, typer.Option("--host", help="A node's installed SGLang.")]
DEFAULT_SETS = ("verify-width", "graph-width")


@app.command("list")
def list_sets(sglang: Version = None, tree: Tree = None, json: opt.Json = False) -> None:
    """List the patch sets with the versions that they are for; with sources also how each fits them."""
    folder = shipped("patches")
    sets = [load(folder / name) for name in names_in(folder)]
    fits = {}
    if sglang is not None or tree is not None:
        fits = {one.name: one for one in recognise(source_of(sglang, tree), folder).sets}
    rows = [
        {"name": one.name, "versions": one.versions, "summary": one.summary, "includes": list(one.includes)}
        | ({"state": str(fits[one.name].fit), "detail": fits[one.name].detail} if one.name in fits else {})
        for one in sets
    ]
    if json:
        print_json({"sets": rows, "exit_code": 0})
        return
    for row in rows:
        state = f"  {row['state']}" if "state" in row else ""
        print(f"{row['name']:<16} {row['versions']:<18}{state}  {row['summary']}")


@app.command()
def check(
    sglang: Version = None,
    tree: Tree = None,
    host: OneHost = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Say whether sources are stock, patched by us, or by someone else, and which sets fit them."""
    states = _states(sglang, tree, host, inventory)
    foreign = any(state.state is State.MODIFIED for state in states.values())
    code = 1 if foreign else 0
    if json:
        rows = [{"where": where, **asdict(state)} for where, state in states.items()]
        print_json({"sources": rows, "exit_code": code})
    else:
        for where, state in states.items():
            _print_state(where, state)
    raise typer.Exit(code)


@app.command()
def diff(
    sglang: Version = None,
    tree: Tree = None,
    host: OneHost = None,
    patches: opt.Patches = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Print what patch sets change, as a unified diff."""
    names = opt.patch_names(patches)
    names = DEFAULT_SETS if names is None else names
    folder = shipped("patches")
    if host:
        (one,) = sessions(_one(host, sglang, tree), inventory)
        facts = resolve.probe(one.node, one.asked, folder)
        made = resolve.patched_tree(facts, names, folder)
    else:
        source = source_of(sglang, tree)
        made = apply_sets(names, folder, source.read, source.version)
    if json:
        document: dict[str, Any] = {
            "sglang": made.sglang, "sets": made.sets, "not_needed": made.not_needed,
            "files": [file.path for file in made.files], "diff": unified_diff(made), "exit_code": 0,
        }  # fmt: skip
        print_json(document)
        return
    for name, evidence in made.not_needed:
        print(f"{name}: not needed in {made.sglang}: {evidence}", file=sys.stderr)
    sys.stdout.write(unified_diff(made))


def _states(
    sglang: str | None, tree: Path | None, host: list[str] | None, inventory: Path | None
) -> dict[str, TreeState]:
    folder = shipped("patches")
    if not host:
        source = source_of(sglang, tree)
        return {source.where: recognise(source, folder)}
    states = {}
    for one in sessions(_one(host, sglang, tree), inventory):
        facts = resolve.probe(one.node, one.asked, folder)
        record = {file.path: file.recorded for file in facts.sglang.modified if file.recorded}
        states[one.host.name] = recognise_node(facts.sglang, record, folder)
    return states


def _one(host: list[str], sglang: str | None, tree: Path | None) -> list[str]:
    if sglang is not None or tree is not None:
        raise UsageError("--host", "got --sglang or --tree as well, expected one of the three")
    return host


def _print_state(where: str, state: TreeState) -> None:
    print(f"{where}: sglang {state.version}: {state.state}")
    for file in state.files:
        lines = ", ".join(f"{first}-{last}" for first, last in file.lines)
        sets = f" by {', '.join(file.sets)}" if file.sets else ""
        print(f"  {file.path}: {file.state}{sets}{f', lines {lines}' if lines else ''} {file.note}".rstrip())
    for one in state.sets:
        print(f"  {one.name}: {one.fit}{f': {one.detail}' if one.detail else ''}")


Budgets = Annotated[str, typer.Option("--budget", help="Budgets, comma-separated.")]
Cases = Annotated[int, typer.Option("--cases", min=1, help="Random trees to prove.")]


@app.command()
def prove(
    sglang: Version = None,
    tree: Tree = None,
    budget: Budgets = "16",
    patches: opt.Patches = None,
    cases: Cases = 60,
    json: opt.Json = False,
) -> None:
    """Run the real, patched attention of an SGLang on random trees, and compare every row with float64."""
    names = opt.patch_names(patches)
    names = DEFAULT_SETS if names is None else names
    document = proven(source_of(sglang, tree), names, budget, cases)
    code = 0 if document["passed"] else 1
    if json:
        print_json(document | {"exit_code": code})
    else:
        _print_proof(document, names)
    raise typer.Exit(code)


def _print_proof(document: dict[str, Any], names: tuple[str, ...]) -> None:
    for finding in document["findings"][:1]:
        print(finding.get("picture") or finding.get("error") or "")
    for cause in document["causes"]:
        print(f"{cause['cases']} cases: {cause['text']}")
    print(
        f"{'passed' if document['passed'] else 'FAILED'}: sets {', '.join(names) or 'none'}: "
        f"{document['cases']} cases, {document['rows']} rows, {document['wrong_rows']} wrong, "
        f"{document['unwritten_rows']} of them never written"
    )
