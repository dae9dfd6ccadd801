"""The agent's replies as the shared model's values."""

from __future__ import annotations

from typing import Any, TypeVar

from pydantic import TypeAdapter, ValidationError

from ddtree_ops.model.errors import Failed
from ddtree_ops.model.facts import Guard, Lock, NodeFacts
from ddtree_ops.model.release import JournalEntry, Release
from ddtree_ops.node.values import Observation, Restarted, Reverted

T = TypeVar("T")

LOCK: TypeAdapter[Lock | None] = TypeAdapter(Lock | None)
GUARD: TypeAdapter[Guard | None] = TypeAdapter(Guard | None)
OBSERVATION: TypeAdapter[Observation] = TypeAdapter(Observation)
RESTARTED: TypeAdapter[Restarted] = TypeAdapter(Restarted)
REVERTED: TypeAdapter[Reverted] = TypeAdapter(Reverted)
RELEASES: TypeAdapter[tuple[Release, ...]] = TypeAdapter(tuple[Release, ...])
ENTRIES: TypeAdapter[tuple[JournalEntry, ...]] = TypeAdapter(tuple[JournalEntry, ...])
BOOL: TypeAdapter[bool] = TypeAdapter(bool)
LINES: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
TEXT: TypeAdapter[str | None] = TypeAdapter(str | None)
NOTHING: TypeAdapter[None] = TypeAdapter(None)
_FACTS: TypeAdapter[NodeFacts] = TypeAdapter(NodeFacts)


def parsed(adapter: TypeAdapter[T], reply: Any, what: str) -> T:
    """The reply as the value that the verb promises; Failed when it is something else."""
    try:
        return adapter.validate_python(reply)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(str(part) for part in first["loc"])
        raise Failed(what, f"the node's reply is not what was expected: {place}: {first['msg']}") from error


def node_facts(reply: dict[str, Any], *, node: str, asked_at: float, answered_at: float) -> NodeFacts:
    """A probe's reply; the clock skew is told at the middle of the round trip.

    The node reads its clock last of all, so the skew is right to within the reply's way back.
    """
    reply = dict(reply)
    now = float(reply.pop("now"))
    skew = now - min(max(now, asked_at), answered_at)
    return parsed(_FACTS, {**reply, "node": node, "clock_skew_s": skew}, "probe")
