"""An engine's own numbers: `/server_info`, `/metrics` and the `Decode batch` lines of its log.

Names drift between releases, so everything is looked up by key and may be absent.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class RankState:
    """One data-parallel rank's `internal_states` entry."""

    accept_length: float | None  # lifetime mean since start or flush, bonus token included
    throughput: float | None  # token/s of the last logged interval
    memory_gb: Mapping[str, float] = field(default_factory=dict)  # "weight", "kvcache", "graph"
    token_capacity: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerInfo:
    """`/server_info` without its secrets: keys and passwords are dropped where the answer is read."""

    version: str | None
    model: str | None
    ranks: tuple[RankState, ...]
    arguments: Mapping[str, object]  # the engine's ServerArgs, as it resolved them

    @property
    def accept_length(self) -> float | None:
        """Lifetime mean accept length, averaged over the ranks that speculated; None when none did."""
        known = [rank.accept_length for rank in self.ranks if rank.accept_length is not None]
        return sum(known) / len(known) if known else None

    @property
    def draft_tokens(self) -> int | None:
        value = self.arguments.get("speculative_num_draft_tokens")
        return value if isinstance(value, int) else None


def server_info(body: Mapping[str, object]) -> ServerInfo:
    """Reads the body of `/server_info` or of its older name `/get_server_info`."""
    states = body.get("internal_states")
    known = states if isinstance(states, list) else []
    arguments = {
        key: value for key, value in body.items() if key != "internal_states" and not _SECRET.search(key)
    }
    return ServerInfo(
        version=_text(body.get("version")),
        model=_text(body.get("model_path")),
        ranks=tuple(_rank(state) for state in known if isinstance(state, dict)),
        arguments=arguments,
    )


_SECRET = re.compile(r"api_key|password|secret|(?:auth|hf|access)_token", re.IGNORECASE)


def _rank(state: Mapping[str, object]) -> RankState:
    usage = state.get("memory_usage")
    memory = usage if isinstance(usage, dict) else {}
    capacity = _number(memory.get("token_capacity"))
    return RankState(
        accept_length=_number(state.get("avg_spec_accept_length")),
        throughput=_number(state.get("last_gen_throughput")),
        memory_gb={
            str(key): value
            for key, raw in memory.items()
            if key != "token_capacity" and (value := _number(raw)) is not None
        },
        token_capacity=None if capacity is None else int(capacity),
    )


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def _text(value: object) -> str | None:
    return value if isinstance(value, str) else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One sample of `/metrics`, in Prometheus' text format."""

    name: str
    labels: Mapping[str, str]
    value: float


def metrics(text: str) -> tuple[Sample, ...]:
    """Reads Prometheus' text exposition format (version 0.0.4); lines that are none of it are passed over."""
    return tuple(sample for line in text.splitlines() if (sample := _sample(line)) is not None)


def total(samples: Iterable[Sample], name: str) -> float | None:
    """The sum over all label sets of one metric; None when it is absent."""
    values = [sample.value for sample in samples if sample.name == name]
    return sum(values) if values else None


_SAMPLE = re.compile(r"^(?P<name>[a-zA-Z_:][\w:]*)(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?$")
_LABEL = re.compile(r'(?P<name>[a-zA-Z_]\w*)="(?P<value>(?:[^"\\]|\\.)*)"')
_ESCAPE = re.compile(r"\\(.)")


def _sample(line: str) -> Sample | None:
    found = None if line.startswith("#") else _SAMPLE.match(line.strip())
    if found is None:
        return None
    try:
        value = float(found["value"])
    except ValueError:
        return None
    labels = {
        label["name"]: _ESCAPE.sub(lambda escape: {"n": "\n"}.get(escape[1], escape[1]), label["value"])
        for label in _LABEL.finditer(found["labels"] or "")
    }
    return Sample(name=found["name"], labels=labels, value=value)
