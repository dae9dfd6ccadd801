"""A sweep's folder: what was asked for, the ledger of what is done, raw samples; one process at a time."""

from __future__ import annotations

import fcntl
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from ddtree_ops.measure.record import append_line, mend, read_lines, write_file
from ddtree_ops.measure.sweep import Cell, State, SweepPlan, read_state
from ddtree_ops.measure.sweep_report import Setting
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.profile import Profile

LEDGER, ASKED, SETTING = "ledger.jsonl", "sweep.json", "setting.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """What a sweep was asked for, as its folder keeps it."""

    node: str
    plan: SweepPlan
    mark: str  # in every prompt, so that no other sweep's cache can help
    command: str
    when: str  # ISO 8601


class Ledger:
    """A sweep's state on disk; `state` is always what the ledger's lines say."""

    def __init__(self, folder: Path, order: Order) -> None:
        self.folder, self.mark = folder, order.mark
        self._entries = read_lines(folder / LEDGER)
        self.state = read_state(order.plan, self._entries)

    @property
    def runs(self) -> frozenset[str]:
        """The runs that have worked at this sweep."""
        return frozenset(str(data["run"]) for data in _of(self._entries, "run"))

    def record(self, entry: Mapping[str, object]) -> None:
        """Has an entry on disk, and in the state, when it returns."""
        append_line(self.folder / LEDGER, entry)
        self._entries.append(dict(entry))
        self.state = read_state(self.state.plan, self._entries)

    def begin(self, run: str) -> None:
        self.record({"kind": "run", "data": {"run": run}})

    def samples_of(self, cell: Cell) -> Path:
        """Where a cell's raw samples go."""
        words = (cell.arm, f"r{cell.round}", cell.workload, f"c{cell.concurrency}", f"n{cell.repeat}")
        return self.folder / "samples" / f"{re.sub(r'[^A-Za-z0-9.]+', '-', '_'.join(words))}.jsonl"

    def describe(self, facts: NodeFacts, base: Profile) -> None:
        """Keeps what the sweep ran on, for its report; the first run's word stands."""
        if not (self.folder / SETTING).exists():
            write_file(self.folder / SETTING, json.dumps(_environment(facts, base), indent=1) + "\n")


@contextmanager
def open_ledger(folder: Path, order: Order, *, resume: bool) -> Iterator[Ledger]:
    """The ledger in a folder, locked against other processes while the context lasts.

    UsageError when there is a sweep already and it is not to be resumed, or it is another one.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            message = "got a sweep at work in it, expected none"
            raise Refused(str(folder), message, hint="wait for it, or name another --out") from error
        path = folder / ASKED
        if not path.exists():
            write_file(path, json.dumps(asdict(order), indent=1) + "\n")
        elif resume:
            order = _same(folder, order)
        else:
            raise UsageError(
                str(folder), "got a folder with a sweep in it, expected a new one",
                hint="--resume goes on with it; --out names another",
            )  # fmt: skip
        mend(folder / LEDGER)
        yield Ledger(folder, order)


def read_sweep(folder: Path) -> tuple[State, Setting]:
    """A sweep's state and where it ran, for reports; UsageError when the folder has none."""
    order, entries = _asked(folder), read_lines(folder / LEDGER)
    kept = folder / SETTING
    pairs = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else []
    commands = {str(data["arm"]): str(data["argv"]) for data in _of(entries, "command")}
    setting = Setting(
        node=order.node,
        when=order.when,
        environment=tuple((str(name), str(value)) for name, value in pairs),
        commands=(order.command, *(f"# {arm}\n{argv}" for arm, argv in commands.items())),
    )
    return read_state(order.plan, entries), setting


def span_words(least_s: float, most_s: float) -> str:
    """`4 to 90 min`; seconds where all is short."""
    if most_s < 120:
        return f"{least_s:.0f} to {most_s:.0f} s"
    return f"{least_s / 60:.0f} to {most_s / 60:.0f} min"


def _of(entries: list[dict[str, object]], kind: str) -> Iterator[dict[str, Any]]:
    for entry in entries:
        data = entry.get("data")
        if entry.get("kind") == kind and isinstance(data, dict):
            yield data


def _asked(folder: Path) -> Order:
    path = folder / ASKED
    try:
        return ORDER.validate_json(path.read_bytes())
    except OSError as error:
        message = f"got {error.strerror}, expected a sweep's folder"
        raise UsageError(str(folder), message, hint="ddtree-ops sweep budgets --help") from error
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}:{where}", f"got {first['msg']}, expected what a sweep asks for") from error


def _same(folder: Path, order: Order) -> Order:
    """What the sweep in the folder was asked for, when that is what is asked for now."""
    before = _asked(folder)
    now: dict[str, object] = {"node": order.node, **asdict(order.plan)}
    then: dict[str, object] = {"node": before.node, **asdict(before.plan)}
    for name, value in now.items():
        if then[name] != value:
            raise UsageError(
                "--resume", f"got {name} {value}, expected {then[name]} as in {folder}",
                hint="resume with the options that it began with, or name another --out",
            )  # fmt: skip
    return before


def _environment(facts: NodeFacts, base: Profile) -> list[tuple[str, str]]:
    gpus = {gpu.name: sum(other.name == gpu.name for other in facts.gpus) for gpu in facts.gpus}
    known = {
        "node": facts.hostname,
        "os": f"{facts.os}, kernel {facts.kernel}",
        "GPUs": ", ".join(f"{count}× {name}" for name, count in gpus.items()) or facts.gpu_note,
        "driver": facts.gpus[0].driver if facts.gpus else "",
        "SGLang": facts.sglang.version or "",
        "torch": facts.sglang.torch or "",
        "triton": facts.sglang.triton or "",
        "kernels": facts.sglang.kernel or "",
        "model": base.model,
        "drafter": base.drafter or "",
        "tensor parallelism": str(base.tp),
    }
    return [(name, value) for name, value in known.items() if value]


ORDER = TypeAdapter(Order)
