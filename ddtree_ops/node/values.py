"""What the node's verbs take and give, beyond the shared model."""

from __future__ import annotations

from dataclasses import dataclass, field

from ddtree_ops.model.facts import Listener, Unit


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One line of a unit's systemd journal."""

    time: float  # seconds since the epoch, the node's clock
    message: str
    invocation: str = ""  # of the process that wrote it; "" for systemd's own lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """How the guard shows, without us, that the previous release serves right output again.

    It waits for the engine to load, generates `tokens` tokens greedily and re-scores each of them
    through prefill. `prompt_ids` is the templated prompt in the engine's own ids; without it the
    engine's `/tokenize` is asked for those of `text`.
    """

    port: int
    host: str = "127.0.0.1"
    prompt_ids: tuple[int, ...] = ()
    text: str = ""
    tokens: int = 16
    deadline_s: float = 1800.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A journal entry to be: the node adds the time."""

    run: str
    by: str
    event: str
    release: str | None = None
    detail: dict[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Restarted:
    """A restart that was asked for; the unit's new invocation shows when it has happened."""

    invocation_before: str  # "": it was not running
    absent: bool = False  # the installed release has no unit: the service was stopped instead


@dataclass(frozen=True, slots=True, kw_only=True)
class Reverted:
    """What `revert` did; the guard stays armed until `conclude` says how it ended."""

    release: str  # the release that is in place now
    restarted: bool  # False: the running process was that release's all along
    invocation_before: str = ""
    by_guard: bool = False  # the guard had been here first, and has concluded
    event: str = ""  # with by_guard: "reverted" | "unproven"
    evidence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """One look at a service: its unit, what its journal said since the last look, its port."""

    unit: Unit
    lines: tuple[JournalLine, ...]
    cursor: str  # for the next look
    listeners: tuple[Listener, ...] = ()  # of the port asked about
    skipped: int = 0  # lines left out, when more came than one look carries
