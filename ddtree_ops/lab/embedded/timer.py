"""One timer unit, after systemd.timer(5): monotonic triggers alone, always to the moment."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable

from ddtree_ops.lab.embedded.unit import Unit, World
from ddtree_ops.lab.embedded.unitfile import INFINITY, UnitFile, seconds

_ONE_SHOT = ("OnActiveSec", "OnBootSec", "OnStartupSec")


class Timer(Unit):
    """A timer and the unit that it starts."""

    def __init__(self, file: UnitFile, world: World, target: Callable[[str], Unit]) -> None:
        super().__init__(file, world)
        self._find = target
        self.trigger: Callable[[str], Awaitable[object]] = _nothing
        self.last_trigger = 0.0
        self.next_elapse = INFINITY
        self._spent: set[tuple[str, float]] = set()
        self._task: asyncio.Task[None] | None = None
        self._started = 0.0

    @property
    def unit(self) -> str:
        return self.file.get("Timer", "Unit") or self.name.removesuffix(".timer") + ".service"

    async def start(self) -> bool:
        """Begins to wait; a timer that already waits goes on waiting."""
        if self.active == "active":
            return True
        self.result, self._started, self._spent = "success", time.monotonic(), set()
        self.say(f"Started {self.title}.")
        self._run(first=True)
        return True

    async def stop(self) -> None:
        """Forgets the schedule; what it started goes on."""
        if self.active != "active":
            return
        await self.crash()
        self.say(f"{self.name}: Deactivated successfully.")
        self.enter("inactive", "dead")
        self.say(f"Stopped {self.title}.")

    async def crash(self) -> None:
        """Drops the schedule without a word."""
        task, self._task = self._task, None
        if task and task is not asyncio.current_task():
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def reloaded(self) -> None:
        """Schedules anew after its file was read again."""
        if self.active == "active":
            await self.crash()
            self._run(first=False)

    def _run(self, *, first: bool) -> None:
        self.enter("active", "waiting")
        self._task = asyncio.get_running_loop().create_task(self._loop(first))

    async def _loop(self, first: bool) -> None:
        while True:
            self.next_elapse = self._next(first)
            first = False
            if self.next_elapse == INFINITY:
                self.enter("active", "elapsed")
                return
            self.enter("active", "waiting")
            await asyncio.sleep(max(0.0, self.next_elapse - time.monotonic()))
            self.last_trigger = time.monotonic()
            self.enter("active", "running")
            await self.trigger(self.unit)
            while self._find(self.unit).active not in ("inactive", "failed"):
                await asyncio.sleep(0.02)

    def _next(self, first: bool) -> float:
        """The next moment on the monotonic clock; one-time triggers that have passed are spent."""
        target = self._find(self.unit)
        bases = {
            "OnActiveSec": self._started,
            "OnBootSec": self.world.booted,
            "OnStartupSec": self.world.booted,
            "OnUnitActiveSec": max(target.inactive_exit, self.last_trigger),
            "OnUnitInactiveSec": max(target.inactive_enter, self.last_trigger),
        }
        moments = [INFINITY]
        for line in self.file.lines:
            span = seconds(line.value) if line.section == "Timer" and line.key in bases else None
            if span is None or not bases[line.key] or (line.key, span) in self._spent:
                continue
            moment = bases[line.key] + span
            if line.key in _ONE_SHOT and not first and moment <= time.monotonic():
                self._spent.add((line.key, span))
                continue
            moments.append(moment)
        return min(moments)


async def _nothing(unit: str) -> None:
    """Stands in until the manager says how units are started."""
