"""The `Decode batch, …` lines that an engine logs every 40 decode steps."""

from __future__ import annotations

import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeBatch:
    """One interval of decoding; what the line does not say is None."""

    running: int | None
    queued: int | None
    accept_length: float | None  # mean over the interval's verify steps, bonus token included
    accept_rate: float | None  # of the drafted tokens, bonus excluded
    graph: bool | None  # the last step replayed a captured graph
    throughput: float | None  # token/s


def decode_batch(line: str) -> DecodeBatch | None:
    """Reads one log line by its keys, whatever their order and number; None when it is no such line."""
    start = _START.search(line)
    if start is None:
        return None
    pairs = (part.rpartition(": ") for part in line[start.end() :].split(", "))
    said = {key.strip(" #"): value.strip() for key, _, value in pairs}
    graph = next((value for key, value in said.items() if key.endswith(" graph")), None)
    return DecodeBatch(
        running=_whole(said.get("running-req")),
        queued=_whole(said.get("queue-req")),
        accept_length=_decimal(said.get("accept len")),
        accept_rate=_decimal(said.get("accept rate")),
        graph=None if graph is None else graph == "True",
        throughput=_decimal(said.get("gen throughput (token/s)")),
    )


_START = re.compile(r"(?:^|\] )Decode batch(?: \[\d+\])?, ")


def _decimal(text: str | None) -> float | None:
    try:
        return None if text is None else float(text)
    except ValueError:
        return None


def _whole(text: str | None) -> int | None:
    value = _decimal(text)
    return None if value is None else int(value)
