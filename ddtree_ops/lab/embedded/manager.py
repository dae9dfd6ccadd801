"""The stand-in for PID 1: loads units, orders jobs, boots, and fires timers."""

from __future__ import annotations

import asyncio
import contextlib
import time
import uuid
from dataclasses import dataclass, field
from pathlib import Path

from ddtree_ops.lab.embedded.journal import Journal
from ddtree_ops.lab.embedded.process import base_environment
from ddtree_ops.lab.embedded.service import Service
from ddtree_ops.lab.embedded.timer import Timer
from ddtree_ops.lab.embedded.unit import Unit, World
from ddtree_ops.lab.embedded.unitfile import read_unit

AnyUnit = Service | Timer


class NoSuchUnit(Exception):
    """There is no file for the unit, or it may not start; the text is systemctl's."""

    def __init__(self, text: str, code: int) -> None:
        super().__init__(text)
        self.code = code


@dataclass(slots=True)
class Job:
    """One start, stop or restart that is queued or under way."""

    kind: str
    done: asyncio.Event = field(default_factory=asyncio.Event)
    task: asyncio.Task[bool] | None = None


class Manager:
    """All units of one node."""

    def __init__(self, root: Path, journal: Journal) -> None:
        self.root = root
        self.unit_dir = root / "etc/systemd/system"
        self.journal = journal
        self.units: dict[str, AnyUnit] = {}
        self.jobs: dict[str, Job] = {}
        self.booting = False
        self._changes: set[asyncio.Event] = set()
        self.world = self._new_world()

    def unit(self, name: str) -> AnyUnit:
        """The unit of that name, loaded from its file when first asked for."""
        if name not in self.units:
            file = read_unit(name, self.unit_dir)
            if name.endswith(".timer"):
                timer = Timer(file, self.world, self.unit)
                timer.trigger = self._trigger
                self.units[name] = timer
            else:
                self.units[name] = Service(file, self.world)
        unit = self.units[name]
        if unit.file.path is None and unit.active in ("inactive", "failed"):
            unit.file = read_unit(name, self.unit_dir)  # systemd looks again for what it had not found
        return unit

    async def daemon_reload(self) -> None:
        """Reads every unit file again; running processes keep what they were started with."""
        for name, unit in list(self.units.items()):
            unit.file = read_unit(name, self.unit_dir)
            if unit.file.path is None and unit.active == "inactive":
                del self.units[name]
            elif isinstance(unit, Timer):
                await unit.reloaded()

    def submit(self, name: str, kind: str) -> Job:
        """Queues a job; a stop or restart takes the place of a start that is under way."""
        unit = self.unit(name)
        _check_loaded(unit, kind)
        old = self.jobs.get(name)
        if old and old.kind == kind == "start":
            return old
        job = Job(kind)
        self.jobs[name] = job
        job.task = asyncio.get_running_loop().create_task(self._run(name, job, old))
        if kind != "stop":
            for other in [*unit.file.words("Unit", "Wants"), *unit.file.words("Unit", "Requires")]:
                self._pull_in(other)
        return job

    async def boot(self) -> None:
        """Starts every enabled unit, each after those that it is ordered behind."""
        self.booting = True
        jobs = []
        for name in self.enabled():
            with contextlib.suppress(NoSuchUnit):
                jobs.append(self.submit(name, "start"))
        await asyncio.gather(*(job.task for job in jobs if job.task), return_exceptions=True)
        self.booting = False

    async def shut_down(self) -> None:
        """Kills every process of every unit at once and forgets all state, as a reset button would."""
        for job in list(self.jobs.values()):
            if job.task:
                job.task.cancel()
        self.jobs.clear()
        for unit in list(self.units.values()):
            await unit.crash()
        self.units.clear()
        self.world = self._new_world()

    def enabled(self) -> list[str]:
        """Units with a link in some target's `.wants`, sorted."""
        return sorted({link.name for link in self.unit_dir.glob("*.target.wants/*")})

    def known(self) -> list[str]:
        """Every unit that is loaded or has a file, sorted."""
        files = {path.name for path in self.unit_dir.iterdir() if path.suffix in (".service", ".timer")}
        return sorted(files | set(self.units))

    async def changed(self) -> None:
        """Waits for the next change of any unit's state."""
        event = asyncio.Event()
        self._changes.add(event)
        try:
            await event.wait()
        finally:
            self._changes.discard(event)

    async def _run(self, name: str, job: Job, old: Job | None) -> bool:
        try:
            if old and old.task and not old.task.done():
                old.task.cancel()
                await asyncio.wait([old.task])
            if job.kind in ("stop", "restart"):
                await self.unit(name).stop()
            if job.kind == "stop":
                return True
            await self._after_others(name)
            return await self.unit(name).start()
        finally:
            job.done.set()
            if self.jobs.get(name) is job:
                del self.jobs[name]

    async def _after_others(self, name: str) -> None:
        """Waits for the queued jobs of units that this one is ordered behind."""
        await asyncio.sleep(0)  # lets the rest of the same batch be queued
        for other, pending in list(self.jobs.items()):
            if other != name and self._ordered(first=other, then=name):
                await pending.done.wait()

    def _ordered(self, *, first: str, then: str) -> bool:
        before = self.unit(first).file.words("Unit", "Before")
        after = self.unit(then).file.words("Unit", "After")
        return then in before or first in after

    def _pull_in(self, name: str) -> None:
        if name.endswith((".service", ".timer")) and self.unit(name).active in ("inactive", "failed"):
            with contextlib.suppress(NoSuchUnit):
                self.submit(name, "start")

    async def _trigger(self, name: str) -> None:
        with contextlib.suppress(NoSuchUnit):
            await self.submit(name, "start").done.wait()

    def _new_world(self) -> World:
        boot = uuid.uuid4().hex
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(str(uuid.UUID(boot)) + "\n")
        return World(
            journal=self.journal,
            environment=base_environment(self.root),
            boot_id=boot,
            booted=time.monotonic(),
            changed=self._notify,
        )

    def _notify(self) -> None:
        for event in tuple(self._changes):
            event.set()


def _check_loaded(unit: Unit, kind: str) -> None:
    if unit.file.path is None and unit.active in ("inactive", "failed"):
        raise NoSuchUnit(f"Unit {unit.name} not {'loaded' if kind == 'stop' else 'found'}.", 5)
    if unit.file.fatal and kind != "stop":
        raise NoSuchUnit(f"Unit {unit.name} has a bad unit file setting.", 1)
