"""Faults that a test plants through the environment; each acts where the real one would."""

from __future__ import annotations

import os
from dataclasses import dataclass

VARIABLE = "REFERENCE_ENGINE_FAULT"
TIMED = (
    "slow-load",  # seconds
    "die-after",  # requests answered, warm-up and health checks aside
)
PLAIN = (
    "crash-at-load",
    "hang",  # the load never ends
    "hang-serving",  # ready, then silent
    "oom",
    "graph-width",  # graphs captured for the block size, not for the verify width
    "wrong-drafter",  # a drafter made for other features
    "draft-quantised",  # the drafter's weights at one bit
    "block-size",  # the drafter runs a longer block than is verified, so that rows and places disagree
    "topk",  # of an accepted path the first rows' slots are kept, right for a chain alone
    "batch",  # every request reads the first one's mask
    "prefix-cache",  # cached slots are handed out again while in use
)


@dataclass(frozen=True)
class Faults:
    """The planted faults: names, and seconds or counts for those that take a number."""

    names: frozenset[str] = frozenset()
    slow_load: float = 0.0
    die_after: int | None = None

    @classmethod
    def planted(cls) -> Faults:
        """What REFERENCE_ENGINE_FAULT asks for, a comma list such as `slow-load=5,topk`."""
        names, numbers = set(), {}
        for word in filter(None, os.environ.get(VARIABLE, "").split(",")):
            name, _, number = word.strip().partition("=")
            if name in TIMED and number:
                numbers[name] = float(number)
            elif name in PLAIN and not number:
                names.add(name)
            else:
                raise SystemExit(f"{VARIABLE}: got {word!r}, expected one of {', '.join(TIMED + PLAIN)}")
        die = numbers.get("die-after")
        return cls(frozenset(names), numbers.get("slow-load", 0.0), None if die is None else int(die))

    def __contains__(self, name: str) -> bool:
        return name in self.names
