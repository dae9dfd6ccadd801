"""What commands print: one JSON document, or text; errors likewise."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, is_dataclass
from typing import Any

from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.plan import Plan
from ddtree_ops.model.result import NodeResult


def print_json(document: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=False, default=_plain) + "\n")
    sys.stdout.flush()


def print_error(error: OpsError, *, as_json: bool) -> None:
    """The error on stderr as text, or on stdout as the JSON document of the command."""
    if as_json:
        print_json({"error": error_fields(error), "exit_code": error.exit_code})
        return
    print(str(error), file=sys.stderr)
    if error.hint:
        print(f"hint: {error.hint}", file=sys.stderr)


def error_fields(error: OpsError) -> dict[str, str]:
    return {"node": error.node, "what": error.what, "message": error.message, "hint": error.hint}


def result_fields(result: NodeResult) -> dict[str, Any]:
    """One node's part of `deploy --json` and `rollback --json`."""
    fields: dict[str, Any] = {
        "node": result.node,
        "outcome": str(result.outcome),
        "release": result.release,
        "previous": result.previous,
        "failed_release": result.failed_release,
        "gates": [asdict(gate) for gate in result.gates],
        "ssh_round_trips": result.ssh_round_trips,
        "seconds": round(result.seconds, 3),
        "exit_code": result.exit_code,
    }
    if result.error is not None:
        fields["error"] = error_fields(result.error)
    return fields


def plan_fields(plan: Plan) -> dict[str, Any]:
    """A plan as data, diffs included."""
    return {
        "node": plan.node,
        "playbook": plan.playbook,
        "current": plan.current,
        "goal": asdict(plan.goal.release),
        "unchanged": plan.unchanged,
        "changes": plan.changes,
        "unit_diff": plan.unit_diff,
        "source_diff": plan.source_diff,
        "not_needed": plan.goal.tree.not_needed,
        "steps": [
            {"step": planned.step.step, "summary": planned.summary, "undo": planned.undo}
            for planned in plan.steps
        ],
    }


def print_result(result: NodeResult, *, verbose: bool) -> None:
    """A node's outcome in the last lines of a run, on stderr."""
    words = {
        "confirmed": f"release {result.release} is confirmed (before: {result.previous})",
        "unchanged": f"release {result.release} is what was asked for; no restart",
        "reverted": f"back at release {result.release}, proven",
        "refused": "nothing was touched",
        "unproven": "could not be proven to serve what it served before: look at it now",
    }
    print(f"{result.node}: {result.outcome}: {words[str(result.outcome)]}", file=sys.stderr)
    if result.failed_release is not None:
        print(f"{result.node}: release {result.failed_release} stays on the node for study", file=sys.stderr)
    if result.error is not None:
        print_error(result.error, as_json=False)
    if verbose:
        print(
            f"{result.node}: {result.ssh_round_trips} SSH round trips, {result.seconds:.1f} s",
            file=sys.stderr,
        )


def print_table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Columns as wide as they need, on stdout, for people and for `cut` alike."""
    widths = [max(len(cell) for cell in column) for column in zip(columns, *rows, strict=True)]
    for row in (columns, *rows):
        print("  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip())


def _plain(value: Any) -> Any:
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, frozenset | set):
        return sorted(value)
    return str(value)
