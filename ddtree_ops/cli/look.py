"""`probe`, `status`, `history` and `logs`: commands that look and touch nothing."""

from __future__ import annotations

import json as jsonlib
import time
from dataclasses import asdict
from typing import Annotated, Any

import typer

from ddtree_ops.cli import options as opt
from ddtree_ops.cli.output import print_json, print_table
from ddtree_ops.cli.session import Session, sessions
from ddtree_ops.cli.world import shipped
from ddtree_ops.model.facts import Gpu, NodeFacts
from ddtree_ops.model.release import JournalEntry
from ddtree_ops.run import resolve

TOLD = ("ready", "selftest", "smoke")  # gates whose verdicts history tells; the others are theirs in detail


def probe(
    host: opt.Hosts,
    profile: opt.ProfileName = None,
    service: opt.Service = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Say what a node is, what it runs and what its SGLang can do."""
    found = [_facts(one) for one in sessions(host, inventory, profile=profile, service=service)]
    if json:
        print_json({"nodes": [_facts_fields(facts) for facts in found], "exit_code": 0})
        return
    for facts in found:
        _print_facts(facts)


def status(
    host: opt.Hosts,
    service: opt.Service = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Say what each node serves, under which release, and whether a run or a guard holds it."""
    rows = [_status(_facts(one)) for one in sessions(host, inventory, service=service)]
    if json:
        print_json({"nodes": rows, "exit_code": 0})
        return
    columns = ("node", "service", "active", "release", "profile", "sglang", "patches", "guard", "lock")
    print_table(columns, [[_cell(row[column]) for column in columns] for row in rows])


def history(
    host: opt.Hosts,
    service: opt.Service = None,
    inventory: opt.InventoryFile = None,
    json: opt.Json = False,
) -> None:
    """Show who did what to a service, when, what changed, and the verdicts."""
    found = [(one.host.name, one.node.history()) for one in sessions(host, inventory, service=service)]
    if json:
        nodes = [{"node": name, "entries": [asdict(entry) for entry in entries]} for name, entries in found]
        print_json({"nodes": nodes, "exit_code": 0})
        return
    for name, entries in found:
        for entry in entries:
            print(f"{name}  {_entry_line(entry)}")


def logs(
    host: opt.Hosts,
    service: opt.Service = None,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, help="Lines to begin with.")] = 50,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on until interrupted.")] = False,
    inventory: opt.InventoryFile = None,
) -> None:
    """Print the engine's journal."""
    for one in sessions(host, inventory, service=service):
        seen = one.node.observe("", tail=lines)
        while True:
            for line in seen.lines:
                stamp = time.strftime("%H:%M:%S", time.localtime(line.time))
                print(f"{one.host.name} {stamp} {line.message}", flush=True)
            if not follow:
                break
            time.sleep(1.0)
            seen = one.node.observe(seen.cursor)


def _facts(one: Session) -> NodeFacts:
    return resolve.probe(one.node, one.asked, shipped("patches"))


def _facts_fields(facts: NodeFacts) -> dict[str, Any]:
    fields = asdict(facts)
    fields["sglang"].pop("files")  # whole texts, for planning only
    for file in fields["sglang"]["modified"]:
        file.pop("text")
    return fields


def _status(facts: NodeFacts) -> dict[str, Any]:
    release = resolve.current_release(facts)
    profile = release.profile if release else None
    return {
        "node": facts.node,
        "service": facts.unit.name,
        "active": facts.unit.active,
        "release": release.id if release else None,
        "profile": profile.name if profile else None,
        "budget": profile.budget if profile else None,
        "sglang": facts.sglang.version,
        "patches": [patch.name for patch in release.patches] if release else [],
        "guard": asdict(facts.guard) if facts.guard else None,
        "lock": asdict(facts.lock) if facts.lock else None,
    }


def _cell(value: Any) -> str:
    if value is None or value == []:
        return "-"
    if isinstance(value, list):
        return ",".join(value)
    if isinstance(value, dict):
        return str(value.get("who") or f"{value['release']} → {value['previous']}")
    return str(value)


def _entry_line(entry: JournalEntry) -> str:
    detail = entry.detail
    words = []
    if detail.get("changes"):
        words.append("; ".join(str(change) for change in _list(detail["changes"])))
    if detail.get("gates"):
        words += [_gate_words(gate) for gate in _list(detail["gates"]) if gate["name"] in TOLD]
    told = [key for key in ("error", "evidence", "why") if detail.get(key) and not detail.get("gates")]
    words += [str(detail[key]).splitlines()[0] for key in told]
    release = f"release {entry.release}" if entry.release is not None else ""
    return f"{entry.at}  {entry.by}  {entry.event:<10} {release:<10} {' | '.join(words)}".rstrip()


def _gate_words(gate: dict[str, Any]) -> str:
    if gate["name"] == "ready":
        return "ready" if gate["passed"] else f"not ready: {gate['evidence']}"
    return f"{gate['name']} {'passed' if gate['passed'] else 'FAILED'}: {gate['evidence'].splitlines()[0]}"


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else [value]


def _print_facts(facts: NodeFacts) -> None:
    for name, value in _fact_lines(facts):
        print(f"{facts.node}  {name:<10} {value}")


def _fact_lines(facts: NodeFacts) -> list[tuple[str, str]]:
    sglang, unit = facts.sglang, facts.unit
    lines = [
        ("os", f"{facts.os}, kernel {facts.kernel}, {facts.machine}, systemd {facts.systemd or 'none'}"),
        ("python", f"venv {facts.venv_python or 'none'}, system {facts.python}"),
        ("sglang", f"{sglang.version or 'none'}, sources {sglang.sources}"),
        (
            "kernels",
            f"torch {sglang.torch or '-'}, triton {sglang.triton or '-'}, kernel {sglang.kernel or '-'}",
        ),
        ("ddtree", f"flags: {sglang.ddtree}"),
        ("disk", f"{facts.disk_free_mib:,} MiB free under {facts.state_dir}"),
        ("unit", f"{unit.name} {unit.active}/{unit.sub}, {unit.restarts} restarts, {unit.path or 'no file'}"),
        ("release", f"{facts.current or 'none yet'}{_of(facts.releases)}"),
        ("clock", f"{facts.clock_skew_s:+.1f} s off yours"),
    ]
    lines += [("modified", file.path) for file in sglang.modified]
    lines += [("gpu", _gpu_words(gpu)) for gpu in facts.gpus]
    if not facts.gpus:
        lines.append(("gpu", facts.gpu_note or "none"))
    lines += [
        ("engine", f"{other.name} {other.active} {jsonlib.dumps(' '.join(other.exec_start))}")
        for other in facts.engines
    ]
    lines += [
        ("port", f"{listener.address}:{listener.port} {listener.unit or listener.process or '?'}")
        for listener in facts.listeners
    ]
    return lines


def _of(releases: tuple[str, ...]) -> str:
    return f" of {', '.join(releases)}" if releases else ""


def _gpu_words(gpu: Gpu) -> str:
    memory = f"{gpu.memory_free_mib:,} of {gpu.memory_total_mib:,} MiB free"
    clock = f"{gpu.sm_clock_mhz or '?'} MHz"
    load = f"{clock}, {len(gpu.processes)} processes"
    link = "" if gpu.link == "none" else f" {gpu.link}"
    return f"{gpu.index} {gpu.name} {gpu.arch}{link}, {memory}, driver {gpu.driver}, {load}"
