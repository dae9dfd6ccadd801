"""A node in a folder: the agent's own code, over a systemctl that keeps its state in files."""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.node.agent import main, watch
from ddtree_ops.node.agent.base import Place

SERVICE = "engine"
OLD, NEW = "[Service]\nExecStart=/bin/old\n", "[Service]\nExecStart=/bin/new\n"

# What the agent asks of systemd, kept in $DDTREE_OPS_ROOT/systemd: a unit's invocation and the text
# that it was started with. Real systemd is asked by the tests in tests/lab.
SYSTEMCTL = r"""#!/bin/sh
state=$DDTREE_OPS_ROOT/systemd; units=$DDTREE_OPS_ROOT/etc/systemd/system
verb=$1; shift
[ "$1" = --no-block ] && shift
start() {
  case $1 in *.timer) echo on > "$state/$1" ;; *)
    n=$(cat "$state/count"); echo $((n + 1)) > "$state/count"
    echo "inv$n" > "$state/$1"; cp "$units/$1" "$state/$1.running" ;; esac
}
case $verb in
  --version) echo "systemd unit-test 1" ;;
  show)
    for unit; do case $unit in --*|\**) continue ;; esac
      echo "Id=$unit"
      if [ -e "$units/$unit" ]; then echo LoadState=loaded; echo "FragmentPath=$units/$unit"; else echo LoadState=not-found; fi
      if [ -e "$state/$unit" ]; then echo ActiveState=active; echo "InvocationID=$(cat "$state/$unit")"; else echo ActiveState=inactive; fi
      echo
    done ;;
  start|restart) for unit; do start "$unit"; done ;;
  stop) for unit; do rm -f "$state/$unit" "$state/$unit.running"; done ;;
  enable) for unit; do mkdir -p "$units/x.wants"; ln -sf "../$unit" "$units/x.wants/$unit"; done ;;
  disable) for unit; do rm -f "$units/x.wants/$unit"; done ;;
  daemon-reload|reset-failed) ;;
  *) echo "unexpected: $verb" >&2; exit 1 ;;
esac
"""


@dataclass
class Folder:
    """The node's files, and its agent called in this process."""

    root: Path

    @property
    def state(self) -> Path:
        return self.root / "var/lib/ddtree-ops" / SERVICE

    @property
    def unit(self) -> Path:
        return self.root / f"etc/systemd/system/{SERVICE}.service"

    @property
    def running(self) -> str | None:
        """The unit text that the running process was started with."""
        path = self.root / f"systemd/{SERVICE}.service.running"
        return path.read_text() if path.exists() else None

    def found(self, text: str = OLD) -> None:
        self.unit.write_text(text)
        os.system(f"systemctl start {SERVICE}.service")

    def ask(self, verb: str, **request: object) -> dict[str, Any]:
        """{"ok": …} or {"error": …}, through the same JSON as over SSH."""
        sent = json.loads(json.dumps({"verb": verb, "service": SERVICE, "source": "# agent\n", **request}))
        return json.loads(json.dumps(main.answer(sent)))

    def ok(self, verb: str, **request: object) -> Any:
        reply = self.ask(verb, **request)
        assert "ok" in reply, reply
        return reply["ok"]

    def error(self, verb: str, **request: object) -> dict[str, str]:
        reply = self.ask(verb, **request)
        assert "error" in reply, reply
        return reply["error"]

    def watch(self) -> None:
        """What the guard's unit runs, one command after the other."""
        watch.settle(Place(SERVICE))
        watch.watch(Place(SERVICE))

    def timer_on(self) -> bool:
        return (self.root / f"systemd/ddtree-ops-guard-{SERVICE}.timer").exists()

    def boot(self) -> None:
        """A power cut: another boot id, no process; enabled guards run before the service starts."""
        boot = self.root / "proc/sys/kernel/random/boot_id"
        boot.parent.mkdir(parents=True, exist_ok=True)
        boot.write_text(f"{boot.read_text() if boot.exists() else ''}x")
        for path in (self.root / "systemd").glob("*.*"):
            path.unlink()
        wants = self.root / "etc/systemd/system/x.wants"
        enabled = [path.name for path in wants.iterdir() if path.exists()] if wants.exists() else []
        if f"ddtree-ops-guard-{SERVICE}.service" in enabled:
            watch.settle(Place(SERVICE))
        if self.unit.exists():
            os.system(f"systemctl start {SERVICE}.service")
        if f"ddtree-ops-guard-{SERVICE}.service" in enabled:
            watch.watch(Place(SERVICE))

    def events(self) -> list[tuple[str, str, str | None]]:
        return [(e["by"], e["event"], e["release"]) for e in self.ok("history")["entries"]]

    def guard_files(self) -> list[str]:
        units = self.root / "etc/systemd/system"
        return sorted(path.name for path in (*units.rglob("*guard*"), *self.state.glob("guard.json")))


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """A folder where fsync costs nothing, since the agent calls it after every change."""
    if not os.access("/dev/shm", os.W_OK):
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir="/dev/shm", prefix="ddtree-ops-test-") as made:
        yield Path(made)


@pytest.fixture
def folder(in_memory: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    root = in_memory / "node"
    for name in ("bin", "systemd", "etc/systemd/system"):
        (root / name).mkdir(parents=True)
    (root / "systemd/count").write_text("1\n")
    for name, text in (
        ("systemctl", SYSTEMCTL),
        ("journalctl", "#!/bin/sh\n"),
        ("systemd-analyze", "#!/bin/sh\n"),
    ):
        (root / "bin" / name).write_text(text)
        (root / "bin" / name).chmod(0o755)
    monkeypatch.setenv("DDTREE_OPS_ROOT", str(root))
    monkeypatch.setenv("PATH", f"{root / 'bin'}:{os.environ['PATH']}")
    return Folder(root)


def manifest(release: str, **more: object) -> dict[str, object]:
    return {"id": release, "fingerprint": f"print of {release}", **more}


# Every call that changes files or starts a program is announced to audit hooks.
CHANGES = (
    "open",
    "os.rename",
    "os.remove",
    "os.mkdir",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "subprocess.Popen",
)


def changes_anything(event: str, arguments: tuple[Any, ...]) -> bool:
    """Whether an audit event is one between which a crash can leave different states."""
    if event != "open":
        return event in CHANGES
    flags = arguments[2] if isinstance(arguments[2], int) else 0
    return bool(flags & (os.O_WRONLY | os.O_RDWR))


def in_child(body: Callable[[], object], at: int, strike: Callable[[], object]) -> bool:
    """Runs body in a forked child and strikes before its at-th change; False when it has fewer.

    The child exits 0 when the body has come to its end, with or without the strike's error.
    """
    struck_read, struck_write = os.pipe()
    pid = os.fork()
    if pid == 0:
        seen = 0

        def hook(event: str, arguments: tuple[Any, ...]) -> None:
            nonlocal seen
            if changes_anything(event, arguments):
                seen += 1
                if seen == at:
                    os.write(struck_write, b"x")
                    strike()

        code = 1
        try:
            sys.addaudithook(hook)
            body()
            code = 0
        finally:
            os._exit(code)
    os.close(struck_write)
    with os.fdopen(struck_read, "rb") as struck:
        hit = bool(struck.read(1))
    os.waitpid(pid, 0)
    return hit
