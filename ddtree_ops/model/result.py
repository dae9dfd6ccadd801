"""How a run ended on one node, and on all of them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.release import Gate

INTERRUPTED = 130
SOME_FAILED = 5


class Outcome(StrEnum):
    CONFIRMED = "confirmed"
    UNCHANGED = "unchanged"
    REVERTED = "reverted"
    REFUSED = "refused"
    UNPROVEN = "unproven"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeResult:
    node: str
    outcome: Outcome
    exit_code: int
    release: str | None = None  # what the node runs now
    previous: str | None = None
    failed_release: str | None = None  # left on the node for study
    gates: tuple[Gate, ...] = ()
    ssh_round_trips: int = 0
    seconds: float = 0.0
    error: OpsError | None = None


def fleet_exit_code(results: tuple[NodeResult, ...]) -> int:
    """The exit code of a run over several nodes: their own when they agree or there is one."""
    codes = {result.exit_code for result in results}
    if len(codes) == 1:
        return codes.pop()
    if INTERRUPTED in codes:
        return INTERRUPTED
    return SOME_FAILED
