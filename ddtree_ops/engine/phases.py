"""An engine's journal as the phases of its load: what it does now, how long, how far, and whether it died.

Line formats are SGLang 0.5.11's: `[time ranks] message`, tqdm bars that repaint with carriage returns, and
uvicorn's own `INFO:     …`. Of parallel ranks only the first is followed; a fatal line counts from any.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import StrEnum

from ddtree_ops.engine.diagnosis import Diagnosis, diagnose


class Phase(StrEnum):
    START = "start"  # Python, imports, arguments
    DISTRIBUTED = "process group"
    WEIGHTS = "weights"
    KV_CACHE = "KV cache"
    GRAPHS = "graphs"
    WARM_UP = "warm-up"
    READY = "ready"


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalLine:
    """One line of a unit's journal; `at` is seconds on the node's clock."""

    text: str
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One phase as it went; `drafter` when it is the draft model's."""

    phase: Phase
    began: float
    ended: float | None = None
    drafter: bool = False
    progress: float | None = None  # 0 … 1, where the engine says so
    detail: str = ""

    @property
    def label(self) -> str:
        return f"drafter {self.phase}" if self.drafter else str(self.phase)

    def elapsed(self, now: float) -> float:
        """Seconds so far, or altogether once the phase has ended."""
        return (now if self.ended is None else self.ended) - self.began


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """Everything that the journal has said since the engine was started."""

    spans: tuple[Span, ...]
    facts: dict[str, str] = field(default_factory=dict)  # e.g. "block size" → "8", as logged
    fatal: Diagnosis | None = None

    @classmethod
    def starting(cls, at: float) -> Load:
        return cls(spans=(Span(phase=Phase.START, began=at),))

    @property
    def current(self) -> Span:
        return self.spans[-1]

    @property
    def ready(self) -> bool:
        return self.current.phase is Phase.READY

    def follow(self, lines: Iterable[JournalLine]) -> Load:
        """This load after these lines too."""
        load = self
        for line in lines:
            load = _after(load, line)
        return load

    def overdue(self, now: float, load_timeout_s: float) -> Diagnosis | None:
        """Why the wait should end although nothing died: the current phase has had its share of the time."""
        span = self.current
        allowed = _SHARE[span.phase] * load_timeout_s
        if span.elapsed(now) <= allowed:
            return None
        return Diagnosis(
            what=span.label,
            message=f"got no end of it in {span.elapsed(now):.0f} s, expected it within {allowed:.0f} s",
            hint=_OVERDUE_HINT.get(
                span.phase, "ddtree-ops logs shows what it does; load_timeout_s bounds the wait"
            ),
            line="",
            rank=-1,
            fatal=True,
        )


# What a phase may take of the profile's load_timeout_s. Weights dominate any healthy load (345–495 s for
# 590 GB); a process group that is not there after minutes never comes.
_SHARE = {
    Phase.START: 0.3,
    Phase.DISTRIBUTED: 0.3,
    Phase.WEIGHTS: 1.0,
    Phase.KV_CACHE: 0.3,
    Phase.GRAPHS: 0.7,
    Phase.WARM_UP: 0.4,
    Phase.READY: float("inf"),
}
_OVERDUE_HINT = {
    Phase.DISTRIBUTED: "NCCL hangs like this when GPUs or links are wedged: nvidia-smi and dmesg may say",
    Phase.GRAPHS: "deploy again with --no-cuda-graph or a smaller graph_max_batch",
}

_PREFIX = re.compile(r"^\[\d{4}-\d\d-\d\d \d\d:\d\d:\d\d(?:\.\d+)?(?P<ranks>(?: [A-Z]+\d+)*)\] ?")
_BAR = re.compile(r"(?P<what>[Ll]oading|Capturing)[^|]*?:\s*\d+%.*?\|\s*(?P<done>\d+)/(?P<total>\d+) \[")
_BEGINS = (
    (re.compile(r"Init torch distributed begin"), Phase.DISTRIBUTED),
    (re.compile(r"Load weight begin"), Phase.WEIGHTS),
    (re.compile(r"Load weight end"), Phase.KV_CACHE),
    (re.compile(r"Capture (?:\w+ )+graph begin", re.IGNORECASE), Phase.GRAPHS),
    (re.compile(r"max_total_num_tokens=\d+, .*max_running_requests="), Phase.WARM_UP),
    (re.compile(r"The server is fired up and ready to roll!"), Phase.READY),
)
_DETAILS = (
    (Phase.WEIGHTS, re.compile(r"Load weight end\. .*mem usage=(?P<detail>[\d.]+ GB)")),
    (Phase.KV_CACHE, re.compile(r"KV Cache is allocated\..* #tokens: (?P<detail>\d+)")),
    (
        Phase.GRAPHS,
        re.compile(r"Capture (?:\w+ )+graph end\. .*mem usage=(?P<detail>[\d.]+ GB)", re.IGNORECASE),
    ),
)
_FACTS = (
    ("block size", re.compile(r"Initialized DFLASH draft runner\..* block_size=(?P<fact>\d+)")),
    ("draft attention", re.compile(r"Initialized DFLASH draft runner\. attention_backend=(?P<fact>\w+)")),
    ("token capacity", re.compile(r"max_total_num_tokens=(?P<fact>\d+), ")),
    ("max running requests", re.compile(r"max_running_requests=(?P<fact>\d+)")),
    ("context length", re.compile(r"context_len=(?P<fact>\d+)")),
)


def _after(load: Load, line: JournalLine) -> Load:
    text = line.text.rsplit("\r", 1)[-1] if "\r" in line.text.strip("\r\n") else line.text.strip("\r\n")
    if (bar := _BAR.search(text)) and not load.ready:
        return _progressed(load, int(bar["done"]) / max(1, int(bar["total"])))
    load = _with_fatal(load, text)
    prefix = _PREFIX.match(text)
    if prefix and any(int(rank) for rank in re.findall(r"\d+", prefix["ranks"])):
        return load
    message = text[prefix.end() :] if prefix else text
    return _with_phase(_with_facts(load, message), message, line.at)


def _progressed(load: Load, progress: float) -> Load:
    return replace(load, spans=(*load.spans[:-1], replace(load.current, progress=progress)))


def _with_fatal(load: Load, text: str) -> Load:
    """Takes note of a fatal line, and of a more telling cause in the lines after it."""
    found = diagnose(text)
    if found is None or not (found.fatal or load.fatal):
        return load
    if load.fatal is not None and load.fatal.rank <= found.rank:
        return load
    return replace(load, fatal=replace(found, fatal=True))


def _with_facts(load: Load, message: str) -> Load:
    found = {name: said["fact"] for name, pattern in _FACTS if (said := pattern.search(message))}
    return replace(load, facts={**load.facts, **found}) if found else load


def _with_phase(load: Load, message: str, at: float) -> Load:
    span = load.current
    for phase, pattern in _DETAILS:
        if span.phase is phase and (said := pattern.search(message)):
            load = replace(load, spans=(*load.spans[:-1], replace(span, detail=said["detail"])))
    for pattern, phase in _BEGINS:
        if pattern.search(message):
            return _begun(load, phase, at)
    return load


def _begun(load: Load, phase: Phase, at: float) -> Load:
    """The load with this phase begun and the last one ended; the drafter's phases repeat the target's."""
    if load.ready or load.current.phase is phase:
        return load
    drafter = phase not in (Phase.WARM_UP, Phase.READY) and any(
        span.phase is phase or span.drafter for span in load.spans
    )
    closed = replace(load.current, ended=at)
    opened = Span(phase=phase, began=at, drafter=drafter, ended=at if phase is Phase.READY else None)
    return replace(load, spans=(*load.spans[:-1], closed, opened))
