"""Writes docs/story.md: one operator's afternoon on a real systemd host, with the commands' real output.

`python tools/story.py` boots a host (root on Linux), runs the scenes and writes the page. The tests run the
same scenes and hold each to its exit code and words.
"""

from __future__ import annotations

import os
import platform
import re
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from ddtree_ops.lab.hosts import Kind, Lab
from ddtree_ops.lab.kinds import open_lab

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "story.md"
TOO_LONG = 400


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One command, what it must end with, and words that its output must hold."""

    text: str
    words: tuple[str, ...]
    code: int
    shows: tuple[str, ...]


SCENES = (
    Scene(
        text="A host as its operator left it: a hand-written unit, stock SGLang 0.5.11, budget 7. It is "
        "good: 7 + 1 tokens are just the drafter's block size of 8.",
        words=("smoke",),
        code=0,
        shows=("pass smoke", "accept length"),
    ),
    Scene(
        text="Budget 16 without the patch: 17 tokens are verified, and the attention backend still counts in "
        "eights. The server is up, healthy, and answers 200. The smoke gate names the prompt and shows the "
        "garble, and re-scoring names the first wrong token. The node goes back by itself and is proven.",
        words=("deploy", "--yes", "--budget", "16", "--topk", "4", "--patches", "none"),
        code=1,
        shows=(
            "FAIL text poem",
            "FAIL rescore poem",
            "the first is token",
            "reverted: back at release 0, proven",
        ),
    ),
    Scene(
        text="The same goal with the patch sets that it needs, which the tool chooses by itself.",
        words=("deploy", "--yes", "--budget", "16", "--topk", "4"),
        code=0,
        shows=("pass smoke", "confirmed: release 2 is confirmed (before: 0)"),
    ),
    Scene(
        text="Deploying it again restarts nothing.",
        words=("deploy", "--yes", "--verbose", "--budget", "16", "--topk", "4"),
        code=0,
        shows=("no restart", "3 SSH round trips"),
    ),
    Scene(
        text="And back to the state that was found.",
        words=("rollback", "--yes"),
        code=0,
        shows=("confirmed: release 0 is confirmed (before: 2)",),
    ),
    Scene(
        text="The node remembers all of it, for whoever asks from wherever.",
        words=("history",),
        code=0,
        shows=("failed     release 1", "confirmed  release 2", "confirmed  release 0"),
    ),
)


@dataclass(frozen=True, kw_only=True)
class Played:
    scene: Scene
    code: int
    output: str


def play(
    lab: Lab,
    name: str,
    home: Path,
    scenes: Sequence[Scene] = SCENES,
    inventory: Path | None = None,
    limit_s: float = 300,
) -> Iterator[Played]:
    """Runs the scenes in order on one host of the lab; output is as a terminal shows it."""
    environment = os.environ | {
        "DDTREE_OPS_INVENTORY": str(inventory or lab.inventory),
        "XDG_STATE_HOME": str(home),
        "PYTHONPATH": os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH")))),
    }
    for scene in scenes:
        argv = lab.operator((sys.executable, "-m", "ddtree_ops", *scene.words, "--host", name))
        done = subprocess.run(
            argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False,
            stdin=subprocess.DEVNULL, timeout=limit_s, cwd=home,
        )  # fmt: skip
        yield Played(scene=scene, code=done.returncode, output=done.stdout)


def accept_length(output: str) -> float:
    """The token-weighted accept length in a smoke verdict's words."""
    found = re.findall(r"accept length ([\d.]+) \(token-weighted", output)
    return float(found[-1])


def page(head: Sequence[str], played: Sequence[Played], name: str) -> str:
    """The page: `head`, then each scene's text, command, output and exit code."""
    lines = [*head, ""]
    for one in played:
        words = shlex.join(one.scene.words)
        output = "\n".join(_cut(line) for line in one.output.rstrip().splitlines())
        lines += [one.scene.text, "", "```console", f"$ ddtree-ops {words} --host {name}", output, "```", ""]
        lines += [f"Exit code {one.code}.", ""]
    return "\n".join(lines)


def _head() -> tuple[str, ...]:
    stamp = datetime.now(UTC).date().isoformat()
    return (
        "# An afternoon on a node",
        "",
        f"Written by `python tools/story.py` on {stamp}: {platform.system()} {platform.machine()}, real",
        "OpenSSH and systemd in a network namespace, the reference engine in place of SGLang's. The same",
        "scenes are a test, `tests/lab/deploy/test_story.py`. Long lines are cut.",
    )


def main() -> None:
    with tempfile.TemporaryDirectory() as folder:
        lab = open_lab(Kind.SYSTEMD, Path(folder) / "lab")
        try:
            (host,) = lab.up(1)
            home = Path(folder) / "home"
            home.mkdir()
            played = list(play(lab, host.name, home))
        finally:
            lab.down()
    PAGE.write_text(page(_head(), played, host.name), encoding="utf-8")


def _cut(line: str) -> str:
    return line if len(line) <= TOO_LONG else line[: TOO_LONG - 1] + "…"


if __name__ == "__main__":
    main()
