"""Watching an engine come up: its journal's phases, its unit's state, then a real completion."""

from __future__ import annotations

from collections.abc import Mapping

from ddtree_ops.engine.diagnosis import Diagnosis, explain
from ddtree_ops.engine.http import Sampling
from ddtree_ops.engine.phases import JournalLine, Load
from ddtree_ops.model.errors import Failed, OpsError
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.node.values import Observation
from ddtree_ops.run.clock import Deadline
from ddtree_ops.run.context import NodeRun

POLL_S = (0.4, 2.0)  # between two looks: at first, and once the load goes on for a while
LAST_LINES = 12  # of the journal, in a failure's message


def await_ready(run: NodeRun, profile: Profile, timeout_s: float, normal: Mapping[str, float]) -> Gate:
    """Waits until the unit's new process serves a completion; `normal` is seconds a phase took before.

    Raises Failed at once when the unit fails, loops or prints a fatal line, or a deadline passes,
    with a diagnosis and the journal's last lines.
    """
    deadline = Deadline(run.world.clock, timeout_s)
    watch = _Watch(run, profile)
    cursor = run.cursor
    while True:
        observation = run.node.observe(cursor, port=profile.port)
        cursor = observation.cursor
        watch.take(observation)
        run.world.screen.progress(run.name, watch.progress(normal))
        if watch.load.ready:
            break
        watch.judge(observation, deadline)
        run.world.clock.sleep(POLL_S[0] if deadline.elapsed < 30 else POLL_S[1])
    _completion(run, profile, watch)
    phases = ", ".join(f"{name} {seconds:.1f} s" for name, seconds in watch.phases().items())
    return Gate(
        name="ready",
        passed=True,
        evidence=f"{phases}; a real completion came back",
        seconds=deadline.elapsed,
    )


def phase_seconds(gate: Gate) -> dict[str, float]:
    """The phases' seconds out of a ready gate's evidence, as kept in the journal."""
    found: dict[str, float] = {}
    for part in gate.evidence.split(";")[0].split(", "):
        name, _, seconds = part.removesuffix(" s").rpartition(" ")
        try:
            found[name] = float(seconds)
        except ValueError:
            continue
    return found


class _Watch:
    """One load as far as it has been seen."""

    def __init__(self, run: NodeRun, profile: Profile) -> None:
        self._run, self._profile = run, profile
        self._began = run.world.clock.monotonic()
        self._first: float | None = None
        self.load = Load.starting(0.0)
        self.tail: list[str] = []

    def take(self, observation: Observation) -> None:
        """Adds what an observation brought; lines of the process before the restart do not count."""
        fresh = [
            line
            for line in observation.lines
            if line.invocation != self._run.invocation or not line.invocation
        ]
        if self._first is None and fresh:
            self._first = fresh[0].time
            self.load = Load.starting(self._first)
        self.tail = [*self.tail, *(line.message for line in fresh)][-200:]
        self.load = self.load.follow(JournalLine(text=line.message, at=line.time) for line in fresh)

    def judge(self, observation: Observation, deadline: Deadline) -> None:
        """Raises Failed when this load will not come to a good end."""
        unit = observation.unit
        if self.load.fatal is not None:
            raise self.failure(self.load.fatal, "printed a fatal line")
        started = unit.invocation not in ("", self._run.invocation)
        if started and unit.restarts > 0:
            raise self.failure(
                explain(self.tail), f"crashed and was restarted {unit.restarts} time(s) by systemd"
            )
        if unit.ended:
            raise self.failure(explain(self.tail), f"ended (unit {unit.active}, result {unit.result})")
        overdue = self.load.overdue(self._now(), deadline.seconds)
        if overdue is not None or deadline.left <= 0:
            seen = f"is still in phase {self.load.current.label} after {deadline.elapsed:.0f} s"
            raise self.failure(overdue, seen)

    def failure(self, diagnosis: Diagnosis | None, seen: str) -> Failed:
        why = f": {diagnosis.message}" if diagnosis is not None else ""
        hint = diagnosis.hint if diagnosis is not None else f"ddtree-ops logs --host {self._run.name}"
        last = "\n".join(f"  | {line}" for line in self.tail[-LAST_LINES:])
        return Failed(
            "ready",
            f"got an engine that {seen}{why}, expected it to serve; its journal's last lines:\n{last}",
            hint=hint,
        )

    def phases(self) -> dict[str, float]:
        return {
            span.label: span.elapsed(self._now()) for span in self.load.spans if str(span.phase) != "ready"
        }

    def progress(self, normal: Mapping[str, float]) -> str:
        span = self.load.current
        if str(span.phase) == "ready":
            return "the engine says it is ready"
        share = f" {span.progress:.0%}" if span.progress is not None else ""
        elapsed = max(0.0, span.elapsed(self._now()))  # the node's clock and ours part by a little
        usual = f" (normal here: {normal[span.label]:.0f} s)" if span.label in normal else ""
        return f"{span.label}{share}, {elapsed:.0f} s{usual}"

    def _now(self) -> float:
        """Now on the node's clock, as its own lines and our elapsed time give it."""
        if self._first is None:
            return self._run.world.clock.monotonic() - self._began
        return self._first + (self._run.world.clock.monotonic() - self._began)


def _completion(run: NodeRun, profile: Profile, watch: _Watch) -> None:
    run.world.screen.progress(run.name, "a real completion")
    try:
        with run.engine(profile) as client:
            answer = client.generate("The ocean", Sampling(max_tokens=8))
    except OpsError as error:
        raise watch.failure(explain(watch.tail), f"said it was ready and then: {error}") from error
    if not answer.text:
        raise watch.failure(None, "answered with an empty completion")
