"""From stock SGLang 0.5.11 to DDTree on a GPU, with the commands' real output: kept as docs/story-gpu.md.

    python tools/gpu_story.py --venv VENV --pair PAIR --out DIR [--scenes deploy|sweep] [--env NAME=VALUE …]

On a machine with a GPU, VENV's Python runs `sglang.launch_server` of 0.5.11, and PAIR holds target/ and
draft/ of a pair that knows the smoke prompts (`benchmarks/gpu/train_pair.py`). SSH and systemd are those of
an embedded lab node; engine, sources, kernels and GPU are real. Writes OUT/story-gpu.md; exit code 1 when a
scene does not go as told.
"""

from __future__ import annotations

import argparse
import difflib
import itertools
import json
import sys
import time
import urllib.request
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

from story import Played, Scene, page, play

from ddtree_ops.checks.smoke import smoke_plan
from ddtree_ops.lab.hosts import SERVICE, Kind, Lab, LabHost
from ddtree_ops.lab.kinds import open_lab

NAME = "gpu-1"
TREE = ("--budget", "16", "--topk", "4")
WORKLOAD = "prompts.jsonl"
PLANTED = "planted.patch"
BACKEND = "sglang/srt/layers/attention/triton_backend.py"
REPLAYED = "            seq_mask_len = self.num_draft_tokens * (seq_lens + self.num_draft_tokens)\n"
UP_S = 300.0
DIFF_LINES = 24

DEPLOY = (
    Scene(
        text="A node as it was found: a hand-written unit, stock SGLang 0.5.11, a DFlash drafter, no tree.",
        words=("probe",),
        code=0,
        shows=("0.5.11",),
    ),
    Scene(
        text="What runs now is good. This is the drafter's chain.",
        words=("smoke",),
        code=0,
        shows=("pass smoke", "accept length"),
    ),
    Scene(
        text="The attention proof on the GPU, beside the engine: what the installed sources would make of a "
        "tree of 16.",
        words=("selftest", "--beside", "--budget", "16"),
        code=1,
        shows=("FAIL selftest", "width"),
    ),
    Scene(
        text="The deploy: patch sets are chosen, staged, and proven on the GPU before anything is restarted; "
        "then the engine is restarted, watched, smoked and confirmed.",
        words=("deploy", "--yes", *TREE),
        code=0,
        shows=("pass selftest", "pass smoke", "confirmed: release 1 is confirmed (before: 0)"),
    ),
    Scene(
        text="The same proof for the release that runs now.",
        words=("selftest", "--beside"),
        code=0,
        shows=("pass selftest", "0 wrong, 0 never written"),
    ),
    Scene(
        text="A patch of one's own with a planted mistake: replayed CUDA graphs count mask rows one column "
        "too wide, eager is right. The gate names it, and the engine that serves is never touched.",
        words=("deploy", "--yes", *TREE, "--patches", f"{PLANTED},ddtree-engine"),
        code=1,
        shows=("FAIL selftest", "offset"),
    ),
    Scene(
        text="A load through the tunnel, of the smoke gate's own prompts.",
        words=("bench", "--workload", WORKLOAD, "--concurrency", "1,8", "--requests", "32"),
        code=0,
        shows=("accept length",),
    ),
    Scene(
        text="And back.",
        words=("rollback", "--yes"),
        code=0,
        shows=("confirmed: release 0 is confirmed (before: 1)",),
    ),
    Scene(text="What the node remembers.", words=("history",), code=0, shows=("confirmed  release 1",)),
)
SWEEP = (
    Scene(
        text="Which budget? Chain and autoregressive are arms too.",
        words=(
            *("sweep", "budgets", "--yes", "--budgets", "8,16,32", "--topk", "4", "--workload", WORKLOAD),
            *("--concurrency", "1", "--requests", "16", "--repeats", "1", "--out", "sweep"),
        ),
        code=0,
        shows=("Run ",),
    ),
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--venv", required=True)
    parser.add_argument("--pair", type=Path, required=True)
    parser.add_argument(
        "--out", type=Path, required=True, help="the page, the lab's state, what the scenes write"
    )
    parser.add_argument("--scenes", choices=("deploy", "sweep"), default="deploy")
    parser.add_argument("--env", action="append", default=[], help="NAME=VALUE for the unit")
    given = parser.parse_args()
    home = given.out.absolute() / "home"
    home.mkdir(parents=True, exist_ok=True)
    _write_workload(home / WORKLOAD)
    _write_planted(home / PLANTED, given.venv)
    scenes = {"deploy": DEPLOY, "sweep": SWEEP}[given.scenes]
    lab = open_lab(Kind.EMBEDDED, given.out.absolute() / "lab")
    played: list[Played] = []
    try:
        (host,) = lab.up(1)
        print(f"engine up after {_serve(lab, host, given):.0f} s", flush=True)
        for one in play(lab, NAME, home, scenes, _inventory(host, home), limit_s=600):
            played.append(one)
            told = "" if _as_told(one) else f"  NOT AS TOLD, expected {one.scene.code} and {one.scene.shows}"
            print(f"$ {' '.join(one.scene.words)}\n{one.output}exit {one.code}{told}", flush=True)
    finally:
        if played:
            folded = [replace(one, output=_folded(_short(one.output, given))) for one in played]
            (given.out / "story-gpu.md").write_text(page(_head(), folded, NAME), encoding="utf-8")
        lab.down()
    return 0 if len(played) == len(scenes) and all(map(_as_told, played)) else 1


def _short(output: str, given: argparse.Namespace) -> str:
    """The output with this machine's folders named by what they hold."""
    for path, word in ((given.out, "LAB"), (given.venv, "VENV"), (given.pair, "PAIR")):
        output = output.replace(str(Path(path).absolute()), word)
    return output


def _folded(output: str) -> str:
    """The output with long diffs of a plan cut short: `ddtree-ops patch diff` shows them."""
    lines: list[str] = []
    for diff, group in itertools.groupby(output.splitlines(), key=lambda line: line.startswith("    ")):
        block = list(group)
        spare = len(block) - DIFF_LINES
        cut = diff and spare > 1
        lines += [*block[:DIFF_LINES], f"    … {spare} more lines"] if cut else block
    return "\n".join(lines)


def _as_told(one: Played) -> bool:
    return one.code == one.scene.code and all(words in one.output for words in one.scene.shows)


def _head() -> tuple[str, ...]:
    stamp = datetime.now(UTC).date().isoformat()
    return (
        "# From stock SGLang to DDTree on a GPU",
        "",
        f"Written by `python tools/gpu_story.py` on {stamp}: real SGLang 0.5.11, a small pair trained on the",
        "smoke prompts (`benchmarks/gpu/train_pair.py`), and in place of OpenSSH and systemd those of an",
        "embedded lab node. Long lines and diffs are cut.",
    )


def _serve(lab: Lab, host: LabHost, given: argparse.Namespace) -> float:
    """Puts the real engine's hand-written unit in place of the lab's, and waits for it; seconds it took."""
    (lab.files(host.name) / f"etc/systemd/system/{SERVICE}.service").write_text(_unit(host, given))
    for words in (("stop", SERVICE), ("daemon-reload",), ("start", SERVICE)):
        lab.run(host.name, ("systemctl", *words))
    began = time.monotonic()
    while time.monotonic() < began + UP_S and not _restarted(lab, host.name):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{host.engine_port}/health", timeout=5):
                return time.monotonic() - began
        except OSError:
            time.sleep(0.5)
    last = lab.run(host.name, ("journalctl", "-u", SERVICE, "-n", "60", "--no-pager"))
    sys.exit(f"the engine did not come up:\n{last.stdout.decode(errors='replace')}")


def _restarted(lab: Lab, name: str) -> bool:
    shown = lab.run(name, ("systemctl", "show", SERVICE, "--property", "NRestarts", "--value"))
    return shown.stdout.strip() not in (b"", b"0")


def _unit(host: LabHost, given: argparse.Namespace) -> str:
    environment = "\n".join(f'Environment="{one}"' for one in given.env)
    pair = given.pair.absolute()
    return f"""\
[Unit]
Description=SGLang, kept by hand
After=network.target

[Service]
Type=simple
{environment}
ExecStart={given.venv}/bin/python -m sglang.launch_server \\
  --model-path {pair}/target \\
  --speculative-algorithm DFLASH --speculative-draft-model-path {pair}/draft \\
  --attention-backend triton --sampling-backend pytorch --grammar-backend none \\
  --disable-piecewise-cuda-graph --cuda-graph-max-bs 16 --max-running-requests 16 \\
  --mem-fraction-static 0.8 --max-total-tokens 65536 --context-length 4096 \\
  --host 127.0.0.1 --port {host.engine_port}
Restart=on-failure
RestartSec=10
KillMode=mixed
TimeoutStartSec=300
TimeoutStopSec=30

[Install]
WantedBy=multi-user.target
"""


def _inventory(host: LabHost, home: Path) -> Path:
    """The node without a profile: what it runs is adopted."""
    entry = {
        "address": host.address,
        "port": host.port,
        "user": host.user,
        "identity_file": str(host.identity_file),
        "known_hosts": str(host.known_hosts),
        "service": SERVICE,
    }
    path = home / "inventory.yaml"
    path.write_text(json.dumps({"hosts": {NAME: entry}}))  # JSON is YAML
    return path


def _write_workload(path: Path) -> None:
    texts = list(dict.fromkeys(request.prompt.text for request in smoke_plan().requests))
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in texts))


def _write_planted(path: Path, venv: str) -> None:
    """A diff against the installed backend: its replay counts mask rows one column too wide."""
    (installed,) = Path(venv).glob(f"lib/python3*/site-packages/{BACKEND}")
    before = installed.read_text(encoding="utf-8")
    start = before.rindex(REPLAYED)  # capture has the same line before it
    after = before[:start] + REPLAYED.replace("+ self", "+ 1 + self") + before[start + len(REPLAYED) :]
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{BACKEND}", f"b/{BACKEND}"
    )
    path.write_text("".join(lines), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
