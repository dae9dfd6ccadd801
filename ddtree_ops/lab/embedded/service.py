"""One service unit's life, after systemd.service(5): start, watch, restart, stop, and what is said of it."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
import uuid
from collections import deque
from collections.abc import Coroutine

from ddtree_ops.lab.embedded.commands import commands, environment_readable
from ddtree_ops.lab.embedded.process import (
    Command,
    Running,
    group_alive,
    kill_marked,
    signal_group,
    spawn,
    trouble,
)
from ddtree_ops.lab.embedded.unit import Unit, World
from ddtree_ops.lab.embedded.unitfile import (
    INFINITY,
    UnitFile,
)

_CLEAN_SIGNALS = {signal.SIGHUP, signal.SIGINT, signal.SIGTERM, signal.SIGPIPE}
_STATUS_NAMES = {0: "SUCCESS", 1: "FAILURE", 2: "INVALIDARGUMENT", 200: "CHDIR", 203: "EXEC"}


class Service(Unit):
    """A service unit; its jobs run one after the other."""

    def __init__(self, file: UnitFile, world: World) -> None:
        super().__init__(file, world)
        self.restarts = 0
        self.main_pid = 0
        self.main_code = 0  # 1 exited, 2 killed, as in ExecMainCode
        self.main_status = 0
        self.main_started = 0.0
        self._main: Running | None = None
        self._groups: list[int] = []
        self._starts: deque[float] = deque()
        self._watcher: asyncio.Task[None] | None = None
        self._stopping = False

    async def start(self) -> bool:
        """Runs a start job; False when it failed. Nothing happens to a unit that is up."""
        if self.active in ("active", "activating") and self.sub != "auto-restart":
            return True
        await self._end_watcher()
        self.restarts = 0
        return await self._start_once()

    async def stop(self) -> None:
        """Runs a stop job: ExecStop=, then the kill signals, then ExecStopPost=."""
        if self.sub == "auto-restart":
            await self._end_watcher()
            self.enter("inactive", "dead")
        if self.active in ("inactive", "failed"):
            return
        self._stopping = True
        self.say(f"Stopping {self.title}...")
        self.enter("deactivating", "stop-sigterm")
        with contextlib.suppress(asyncio.CancelledError):
            await self._run_all("ExecStop")
        await self._terminate()
        await self._end_watcher()
        await self._settle()
        self._stopping = False
        self.say(f"Stopped {self.title}.")

    def reset_failed(self) -> None:
        super().reset_failed()
        self.restarts = 0
        self._starts.clear()

    def kill(self, number: int) -> None:
        """Sends a signal to all of the unit's processes."""
        for group in self._groups:
            signal_group(group, number)

    async def crash(self) -> None:
        """Ends the unit at once with all of its processes, as a power cut would."""
        await self._end_watcher()
        self._kill_all()

    async def _start_once(self) -> bool:
        if not self._may_start():
            return False
        self.result, self.invocation = "success", uuid.uuid4().hex
        self.main_code = self.main_status = 0
        self.say(f"Starting {self.title}..." if self._oneshot else f"Started {self.title}.")
        limit = self.file.span("Service", "TimeoutStartSec", INFINITY if self._oneshot else 90.0)
        self.enter("activating", "start-pre")
        try:
            async with asyncio.timeout(None if limit in (0, INFINITY) else limit):
                return await self._bring_up()
        except TimeoutError:
            self.say(f"{self.name}: start operation timed out. Terminating.")
            self.result = "timeout"
            await self._terminate()
        except (OSError, RuntimeError) as error:  # no more processes, files or threads
            self.say(f"{self.name}: Failed to fork: {error}")
            self.result = "resources"
        await self._fallen()
        return False

    async def _bring_up(self) -> bool:
        if not environment_readable(self.file):
            return await self._refuse("Failed to load environment files: No such file or directory")
        if not self._oneshot and not self._commands("ExecStart"):  # its file went while the job was queued
            return await self._refuse("Service has no ExecStart= setting. Refusing.")
        if not await self._run_all("ExecStartPre"):
            await self._fallen()
            return False
        self.enter("activating", "start")
        if self._oneshot:
            return await self._run_oneshot()
        main = self._commands("ExecStart")
        if not main:  # its file went while ExecStartPre= ran
            return await self._refuse("There's no 'start' task anymore we could start.")
        if not await self._spawn_main(main[0]):
            self._watch(self._fallen())
            return self.file.get("Service", "Type", "simple") != "exec"
        self.enter("active", "running")
        self._watch(self._watch_main())
        return True

    async def _refuse(self, why: str) -> bool:
        self.say(f"{self.name}: {why}")
        self.result = "resources"
        await self._fallen()
        return False

    async def _run_oneshot(self) -> bool:
        good = await self._run_all("ExecStart", main=True)
        if good and self.file.get("Service", "RemainAfterExit") in ("yes", "true", "1", "on"):
            self.enter("active", "exited")
            self.say(f"Finished {self.title}.")
            return True
        if not good:
            await self._fallen()
            return False
        self._kill_all()
        self.say(f"{self.name}: Deactivated successfully.")
        await self._run_all("ExecStopPost")
        self.enter("inactive", "dead")
        self.say(f"Finished {self.title}.")
        return True

    async def _watch_main(self) -> None:
        assert self._main
        await self._main.process.wait()
        if self._stopping:
            return
        await self._output_read()
        self._note_exit(self._main.process.returncode or 0)
        await self._terminate()
        await self._fallen()

    async def _fallen(self) -> None:
        """What follows an end that nobody asked for: ExecStopPost=, then a restart or rest."""
        await self._settle()
        policy = self.file.get("Service", "Restart", "no")
        wanted = policy == "always" or (self.result != "success" and policy in ("on-failure",))
        wanted = wanted or (policy == "on-abnormal" and self.result in ("signal", "timeout"))
        wanted = wanted or (policy == "on-success" and self.result == "success")
        if wanted and not self._stopping:
            self.enter("activating", "auto-restart")
            self._watch(self._restart_later())

    async def _restart_later(self) -> None:
        await asyncio.sleep(self.file.span("Service", "RestartSec", 0.1))
        self.restarts += 1
        self.say(f"{self.name}: Scheduled restart job, restart counter is at {self.restarts}.")
        self.say(f"Stopped {self.title}.")
        await self._start_once()

    async def _settle(self) -> None:
        """Ends what is left of the processes and names the outcome."""
        if self._commands("ExecStopPost"):
            self.enter("deactivating", "stop-post")
            await self._run_all("ExecStopPost")
        self._kill_all()
        self._main, self.main_pid = None, 0
        if self.result == "success":
            self.say(f"{self.name}: Deactivated successfully.")
            self.enter("inactive", "dead")
        else:
            self.say(f"{self.name}: Failed with result '{self.result}'.")
            self.enter("failed", "failed")

    def _may_start(self) -> bool:
        interval = self.file.span("Unit", "StartLimitIntervalSec", 10.0)
        burst = int(self.file.get("Unit", "StartLimitBurst", "5"))
        now = time.monotonic()
        while self._starts and now - self._starts[0] > interval:
            self._starts.popleft()
        if interval and len(self._starts) >= burst:
            if self.result == "success":
                self.result = "start-limit-hit"
            self.say(f"{self.name}: Start request repeated too quickly.")
            self.say(f"{self.name}: Failed with result '{self.result}'.")
            self.say(f"Failed to start {self.title}.")
            self.enter("failed", "failed")
            return False
        self._starts.append(now)
        return True

    async def _spawn_main(self, command: Command) -> bool:
        self.main_started = time.time()
        bad = trouble(command)
        if bad:
            self._note_exit(bad)
            return False
        self._main = await spawn(command, self.log)
        self.main_pid = self._main.process.pid
        self._groups.append(self._main.process.pid)
        return True

    async def _run_all(self, key: str, *, main: bool = False) -> bool:
        for command in self._commands(key):
            if main:
                started = await self._spawn_main(command)
                code = await self._main.process.wait() if started and self._main else self.main_status
                await self._output_read()
                if started:
                    self._note_exit(code, quiet=code == 0)
                self._main, self.main_pid = None, 0
            else:
                code = await self._run_control(command)
            if code and not command.ignore_errors:
                return False
        return True

    async def _run_control(self, command: Command) -> int:
        bad = trouble(command)
        if not bad:
            running = await spawn(command, self.log)
            self._groups.append(running.process.pid)
            bad = await running.process.wait()
            await asyncio.wait([running.output], timeout=0.2)
        if bad and not command.ignore_errors and not self._stopping:
            self.say(f"{self.name}: Control process exited, code=exited, status={bad}{_named(bad)}")
            self.result = "signal" if bad < 0 else "exit-code"
        return bad

    def _note_exit(self, code: int, *, quiet: bool = False) -> None:
        self.main_code, self.main_status = (2, -code) if code < 0 else (1, code)
        if (
            code == 0
            or -code in _CLEAN_SIGNALS
            or str(code) in self.file.words("Service", "SuccessExitStatus")
        ):
            return
        if self.result == "success":
            self.result = "signal" if code < 0 else "exit-code"
        if not quiet:
            how, what = (
                ("killed", f"{-code}/{signal.Signals(-code).name[3:]}") if code < 0 else ("exited", str(code))
            )
            self.say(f"{self.name}: Main process exited, code={how}, status={what}{_named(code)}")

    async def _terminate(self) -> None:
        """KillSignal= to the main process (all, for control-group), SIGKILL when TimeoutStopSec= is over."""
        mode = self.file.get("Service", "KillMode", "control-group")
        number = getattr(signal, self.file.get("Service", "KillSignal", "SIGTERM"), signal.SIGTERM)
        if self._main and self._main.process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._main.process.send_signal(number)
        if mode == "control-group":
            self.kill(number)
        if not await self._gone(everything=mode == "control-group"):
            self.result = "timeout"
            self.say(f"{self.name}: State 'stop-sigterm' timed out. Killing.")
        self._kill_all()
        if self._main:
            code = await self._main.process.wait()
            await self._output_read()
            if self._stopping:
                self._note_exit(code)

    async def _gone(self, *, everything: bool) -> bool:
        limit = self.file.span("Service", "TimeoutStopSec", 90.0)
        deadline = time.monotonic() + limit
        while (self._main and self._main.process.returncode is None) or (everything and self._any_left()):
            if time.monotonic() > deadline:
                return False
            await asyncio.sleep(0.01)
        return True

    def _any_left(self) -> bool:
        self._groups = [group for group in self._groups if group_alive(group)]
        return bool(self._groups)

    def _kill_all(self) -> None:
        self.kill(signal.SIGKILL)
        self._groups.clear()
        if self.invocation:
            kill_marked(f"INVOCATION_ID={self.invocation}")

    async def _output_read(self) -> None:
        """Waits a moment for the rest of the main process's output, which children may hold open."""
        if self._main:
            await asyncio.wait([self._main.output], timeout=0.2)

    def _watch(self, what: Coroutine[None, None, None]) -> None:
        self._watcher = asyncio.get_running_loop().create_task(what)

    async def _end_watcher(self) -> None:
        watcher, self._watcher = self._watcher, None
        if watcher and watcher is not asyncio.current_task():
            watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await watcher

    @property
    def _oneshot(self) -> bool:
        return self.file.get("Service", "Type", "simple") == "oneshot"

    def _commands(self, key: str) -> list[Command]:
        environment = self.world.environment | {"INVOCATION_ID": self.invocation}
        return commands(self.file, key, environment)


def _named(code: int) -> str:
    return f"/{_STATUS_NAMES[code]}" if code in _STATUS_NAMES else ("" if code < 0 else "/n/a")
