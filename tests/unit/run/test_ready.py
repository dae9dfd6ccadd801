"""When the wait for an engine ends, by what its unit shows on the way."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import pytest

from ddtree_ops.model.errors import Failed
from ddtree_ops.model.facts import Unit
from ddtree_ops.model.profile import Profile
from ddtree_ops.node.values import JournalLine, Observation
from ddtree_ops.run.ready import await_ready

READY = "The server is fired up and ready to roll!"
STOPPING = Unit(name="s.service", active="deactivating", ended=False, invocation="old")
BETWEEN = Unit(name="s.service", active="failed", ended=False, result="signal")
RUNNING = Unit(name="s.service", active="active", ended=False, invocation="new")
AGAIN = Unit(name="s.service", active="activating", ended=False, invocation="new", restarts=1)
FAILED = Unit(name="s.service", active="failed", ended=True, result="exit-code")


class StandingClock:
    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def awaited(profile: Profile, *units: Unit, before: str = "old") -> Any:
    """The gate, when the node shows these units one after the other; the last one is ready."""
    shown = iter(units)

    def observe(cursor: str, *, port: int) -> Observation:
        unit = next(shown)
        said = [JournalLine(time=1.0, message=READY, invocation="new")] if unit is RUNNING else []
        return Observation(unit=unit, lines=tuple(said), cursor=cursor)

    client = SimpleNamespace(generate=lambda *_: SimpleNamespace(text="waves"))
    run = SimpleNamespace(
        node=SimpleNamespace(observe=observe), name="n", cursor="c", invocation=before,
        world=SimpleNamespace(clock=StandingClock(), screen=SimpleNamespace(progress=lambda *_: None)),
        engine=lambda _: nullcontext(client),
    )  # fmt: skip
    return await_ready(run, profile, 60.0, {})


@pytest.mark.parametrize("before", ["old", ""])
def test_an_engine_that_kills_itself_when_stopped_is_waited_for(profile: Profile, before: str) -> None:
    assert awaited(profile, STOPPING, BETWEEN, BETWEEN, RUNNING, before=before).passed


@pytest.mark.parametrize("before", ["old", ""])
@pytest.mark.parametrize(
    ("unit", "seen"),
    [(FAILED, "ended (unit failed, result exit-code)"), (AGAIN, "crashed and was restarted 1")],
)
def test_an_engine_that_ended_ends_the_wait_whatever_ran_before(
    unit: Unit, seen: str, before: str, profile: Profile
) -> None:
    with pytest.raises(Failed) as caught:
        awaited(profile, BETWEEN, unit, before=before)
    assert seen in str(caught.value)
