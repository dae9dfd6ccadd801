"""An operator with a laptop, and a node that serves: what the tests of whole commands need."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

from ddtree_ops.lab.hosts import Kind, Lab, LabHost
from ddtree_ops.lab.kinds import open_lab

ROOT = Path(__file__).parents[3]
SERVICE = "sglang-ddtree"
COMMAND_TIMEOUT_S = 240
POEM_ALIVE = (
    "import json,urllib.request as u;print(u.urlopen('http://127.0.0.1:{port}/health_generate').status)"
)
SMALL_GPU = """\
#!/bin/sh
# A stand-in for nvidia-smi: one GPU with 2,000 MiB.
case "$*" in
*--query-gpu*) echo "0, GPU-1, Small GPU, 9.0, 580.1, 2000, 0, 1200, 100.0, 40" ;;
esac
"""


@dataclass(frozen=True, kw_only=True)
class Ran:
    """One finished command of the operator's."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def node(self) -> Any:
        """The only node of a deploy's or rollback's document."""
        (node,) = self.json["nodes"]
        return node


@dataclass(kw_only=True)
class Operator:
    """Somebody at a laptop with an inventory of their own, and the node that they work on."""

    lab: Lab
    host: LabHost
    home: Path
    inventory: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        yaml = YAML(typ="safe")
        self.inventory = yaml.load(self.lab.inventory.read_text())
        self.inventory["defaults"]["lease_s"] = 10
        self.save()

    @property
    def name(self) -> str:
        return self.host.name

    @property
    def profile(self) -> dict[str, Any]:
        return self.inventory["profiles"][self.inventory["hosts"][self.name]["profile"]]

    @property
    def entry(self) -> dict[str, Any]:
        return self.inventory["hosts"][self.name]

    @property
    def file(self) -> Path:
        return self.home / "inventory.yaml"

    def save(self) -> None:
        with self.file.open("w") as file:
            YAML().dump(self.inventory, file)

    def argv(self, *words: str) -> tuple[str, ...]:
        return self.lab.operator((sys.executable, "-m", "ddtree_ops", *words))

    def environment(self) -> dict[str, str]:
        return os.environ | {
            "DDTREE_OPS_INVENTORY": str(self.file),
            "XDG_STATE_HOME": str(self.home / "state"),
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
        }

    def ops(
        self,
        *words: str,
        host: bool = True,
        code: int | None = None,
        timeout_s: float = COMMAND_TIMEOUT_S,
    ) -> Ran:
        """Runs `ddtree-ops WORDS --host NAME`; fails with its output when it ends with another code."""
        named = ("--host", self.name) if host else ()
        done = subprocess.run(
            self.argv(*words, *named), capture_output=True, text=True, env=self.environment(), check=False,
            timeout=timeout_s, stdin=subprocess.DEVNULL, cwd=self.home,
        )  # fmt: skip
        ran = Ran(code=done.returncode, out=done.stdout, err=done.stderr)
        assert "Traceback" not in ran.err, ran.err
        assert code is None or code == ran.code, f"exit {ran.code}\n{ran.out}\n{ran.err}"
        return ran

    def deploy(self, *words: str, code: int = 0) -> Ran:
        return self.ops("deploy", "--yes", "--json", *words, code=code)

    def start(self, *words: str) -> subprocess.Popen[str]:
        """The same in the background; its output goes to a file beside the inventory."""
        with (self.home / "background.log").open("w") as log:
            return subprocess.Popen(
                self.argv(*words, "--host", self.name), stdout=log, stderr=log, text=True, cwd=self.home,
                env=self.environment(), stdin=subprocess.DEVNULL,
            )  # fmt: skip

    def on_node(self, *argv: str, stdin: bytes = b"") -> str:
        """Runs a command on the node, past SSH."""
        done = self.lab.run(self.name, argv, stdin=stdin)
        assert done.returncode == 0, done.stderr.decode()
        return done.stdout.decode()

    def file_on_node(self, path: str) -> Path:
        return self.lab.files(self.name) / path.lstrip("/")

    def show(self, name: str) -> str:
        text = self.on_node("systemctl", "show", f"{SERVICE}.service", "-p", name)
        return text.strip().partition("=")[2]

    def serving(self) -> tuple[str, str]:
        """What the node serves, as far as it can be told apart: the process and the unit's text."""
        unit = self.file_on_node(f"/etc/systemd/system/{SERVICE}.service").read_text()
        return self.show("InvocationID"), unit

    def status(self) -> Any:
        (row,) = self.ops("status", "--json", code=0).json["nodes"]
        return row

    def events(self) -> list[str]:
        (node,) = self.ops("history", "--json", code=0).json["nodes"]
        return [f"{entry['event']} {entry['release']}" for entry in node["entries"]]

    def entries(self) -> list[dict[str, Any]]:
        (node,) = self.ops("history", "--json", code=0).json["nodes"]
        return node["entries"]

    def healthy(self) -> bool:
        """Whether the engine gives a completion, asked on the node itself."""
        python = f"{self.host.venv}/bin/python"
        code = POEM_ALIVE.format(port=self.host.engine_port)
        done = self.lab.run(self.name, (python, "-c", code))
        return done.returncode == 0 and done.stdout.strip() == b"200"


@pytest.fixture(scope="session")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[[Kind, int], Lab]]:
    """A lab of its own for each caller that asks, since nodes remember what was done to them."""
    labs: list[Lab] = []
    guard = threading.Lock()

    def boot(kind: Kind, count: int = 1) -> Lab:
        with guard:
            lab = open_lab(kind, tmp_path_factory.mktemp("fleet") / kind)
            labs.append(lab)
            lab.up(count)
            return lab

    yield boot
    for lab in labs:
        lab.down()


@pytest.fixture
def fresh(lab: Lab, tmp_path: Path) -> Iterator[Operator]:
    """An operator at the module's node, which is put back to the state found afterwards."""
    yield from operate(lab, lab.status()[0], tmp_path)


def operate(lab: Lab, host: LabHost, home: Path) -> Iterator[Operator]:
    operator = Operator(lab=lab, host=host, home=home)
    unit = operator.file_on_node(f"/etc/systemd/system/{SERVICE}.service")
    found = unit.read_text()
    wait_until(operator.healthy)
    yield operator
    operator.on_node("/bin/sh", "-c", f"rm -rf {host.state_dir}")
    if unit.read_text() != found:
        unit.write_text(found)
        operator.on_node("systemctl", "daemon-reload")
        operator.on_node("systemctl", "restart", SERVICE)
    wait_until(operator.healthy)


def wait_until(look: Callable[[], bool], seconds: float = 60.0) -> None:
    deadline = time.monotonic() + seconds
    while not look():
        assert time.monotonic() < deadline, "it did not come about"
        time.sleep(0.2)


@contextmanager
def first_on_path(operator: Operator, name: str, text: str) -> Iterator[None]:
    """A program of the node's that comes before any other of its name; what was in its place comes back."""
    folder = "/usr/local/bin" if operator.host.kind is Kind.SYSTEMD else "/usr/lib/ddtree-lab"
    place = operator.file_on_node(f"{folder}/{name}")
    aside = place.with_name(f".{name}.aside")
    place.parent.mkdir(parents=True, exist_ok=True)
    if place.exists() or place.is_symlink():
        place.rename(aside)
    place.write_text(text)
    place.chmod(0o755)
    try:
        yield
    finally:
        place.unlink()
        if aside.exists() or aside.is_symlink():
            aside.rename(place)
