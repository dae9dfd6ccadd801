"""Starts SGLang servers on this machine's GPUs, talks to them, and stops them; standard library only."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

COMMON = [
    *("--host", "127.0.0.1", "--attention-backend", "triton", "--sampling-backend", "pytorch"),
    *("--grammar-backend", "none", "--disable-piecewise-cuda-graph", "--skip-server-warmup"),
]


@dataclass(frozen=True)
class Cell:
    """One server to start: plain, the DFLASH chain, or a tree of `budget` nodes, `cap` candidates a depth.

    `site` says which sources it runs from; by itself the plain server is stock, all others are patched.
    """

    pair: str
    kind: str  # plain | chain | tree
    budget: int = 0
    cap: int = 0
    graphs: bool = True
    tp: int = 1
    extra: tuple[str, ...] = ()
    site: str = ""  # stock | patched

    @property
    def patched(self) -> bool:
        return self.site == "patched" if self.site else self.kind != "plain"

    @property
    def name(self) -> str:
        shape = f"b{self.budget}c{self.cap}" if self.kind == "tree" else self.kind
        shape += f"@{self.site}" if self.site else ""
        parts = [self.pair, shape, "graph" if self.graphs else "eager"]
        return "-".join(
            parts + ([f"tp{self.tp}"] if self.tp > 1 else []) + [x.strip("-") for x in self.extra]
        )


@dataclass(frozen=True)
class Setup:
    """Where things are: model pairs (name → directory with target/ and draft/), the two trees, logs."""

    pairs: dict[str, Path]
    stock: str  # PYTHONPATH of an unpatched sglang
    patched: str  # PYTHONPATH of the patched one
    logs: Path
    max_bs: int = 16
    tokens: int = 65536
    context: int = 4096
    memory: float = 0.5
    first_gpu: int = 0


@dataclass
class Server:
    """A running (or failed) server of one cell."""

    cell: Cell
    port: int
    process: subprocess.Popen[bytes]
    log: Path
    up_s: float | None = None
    started: float = field(default_factory=time.monotonic)

    def post(self, path: str, body: dict[str, Any], timeout: float = 300) -> Any:
        data = json.dumps(body).encode()
        url = f"http://127.0.0.1:{self.port}{path}"
        request = urllib.request.Request(url, data=data, headers={"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=timeout) as reply:
            return json.loads(reply.read())

    def get(self, path: str, timeout: float = 10) -> bytes:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=timeout) as reply:
            return bytes(reply.read())

    def generate(self, ids: Any, timeout: float = 300, **params: Any) -> Any:
        return self.post("/generate", {"input_ids": ids, "sampling_params": params}, timeout)

    def flush(self) -> None:
        """Empties the radix cache, once nothing runs any more."""
        for _ in range(50):
            try:
                self.get("/flush_cache")
            except urllib.error.HTTPError:
                time.sleep(0.1)
            else:
                return
        raise OSError(f"{self.cell.name}: /flush_cache is refused for 5 s: requests still run")

    def tail(self, lines: int = 25) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])


def command(cell: Cell, setup: Setup, port: int) -> list[str]:
    """The server's command line."""
    home = setup.pairs[cell.pair]
    words = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(home / "target")]
    words += ["--port", str(port), "--nccl-port", str(port + 50), "--tp", str(cell.tp), *COMMON]
    words += ["--cuda-graph-max-bs", str(setup.max_bs), "--max-running-requests", str(setup.max_bs)]
    words += ["--mem-fraction-static", str(setup.memory), "--max-total-tokens", str(setup.tokens)]
    words += ["--context-length", str(setup.context)]
    if cell.kind != "plain":
        words += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(home / "draft")]
    if cell.kind == "tree":
        words += [
            "--speculative-ddtree-budget",
            str(cell.budget),
            "--speculative-ddtree-topk-cap",
            str(cell.cap),
        ]
    return [*words, *([] if cell.graphs else ["--disable-cuda-graph"]), *cell.extra]


def start(cells: list[Cell], setup: Setup, gpus: int = 1, base_port: int = 10000) -> list[Server]:
    """Starts all at once, spread over the GPUs; a SIGTERM from now on ends the run as an error does.

    Ports stay below the range from which Linux takes outgoing ones: polling a free port there can connect to
    itself. A port that is taken ends the run: the server there would be measured in this one's name.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that who calls stops the servers
    setup.logs.mkdir(parents=True, exist_ok=True)
    servers: list[Server] = []
    try:
        for index, cell in enumerate(cells):
            first = setup.first_gpu + index * cell.tp % gpus
            servers.append(_launch(cell, setup, base_port + 100 * index, first))
    except BaseException:
        stop(servers)
        raise
    return servers


def _launch(cell: Cell, setup: Setup, port: int, first_gpu: int) -> Server:
    if _taken(port):
        sys.exit(f"{cell.name}: got port {port} taken, expected it free: is an earlier run's server left?")
    site = setup.patched if cell.patched else setup.stock
    devices = ",".join(str(first_gpu + one) for one in range(cell.tp))
    env = {**os.environ, "PYTHONPATH": site, "CUDA_VISIBLE_DEVICES": devices, "OMP_NUM_THREADS": "1"}
    log = setup.logs / f"{cell.name}.log"
    with log.open("wb") as out:
        process = subprocess.Popen(
            command(cell, setup, port),
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
        )
    return Server(cell=cell, port=port, process=process, log=log)


def _taken(port: int) -> bool:
    with socket.socket() as asked:
        return asked.connect_ex(("127.0.0.1", port)) == 0


def wait(servers: list[Server], limit_s: float) -> list[Server]:
    """Those that came up; the others' last log lines are printed."""
    left, deadline = list(servers), time.monotonic() + limit_s
    while left and time.monotonic() < deadline:
        for server in list(left):
            if server.process.poll() is not None:
                print(
                    f"## {server.cell.name} ended with {server.process.returncode}\n{server.tail()}",
                    flush=True,
                )
                left.remove(server)
            elif _answers(server):
                server.up_s = time.monotonic() - server.started
                left.remove(server)
        time.sleep(0.5)
    for server in left:
        print(f"## {server.cell.name} not up after {limit_s} s\n{server.tail()}", flush=True)
    return [server for server in servers if server.up_s is not None]


def _answers(server: Server) -> bool:
    try:
        server.get("/health", timeout=5)
    except (OSError, http.client.HTTPException):
        return False
    return True


def stop(servers: list[Server]) -> None:
    """Ends each server's own process group."""
    for how in (signal.SIGTERM, signal.SIGKILL):
        for server in servers:
            try:
                os.killpg(server.process.pid, how)
            except ProcessLookupError:
                continue
        if how is signal.SIGTERM:
            time.sleep(2)


def ids_of(reply: Any) -> list[int]:
    return list(reply["output_ids"])


def batch(server: Server, prompts: list[list[int]], size: int, **params: Any) -> list[Any]:
    """Replies in the prompts' order, `size` requests at work at any time."""
    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(lambda ids: server.generate(ids, **params), prompts))


def setup_of(args: Any) -> Setup:
    """From the arguments that `add_arguments` defines."""
    pairs = dict(one.split("=", 1) for one in args.pair)
    return Setup(
        pairs={name: Path(path) for name, path in pairs.items()},
        stock=args.stock,
        patched=args.patched,
        logs=Path(args.logs),
        max_bs=args.max_bs,
        tokens=args.tokens,
        context=args.context,
        memory=args.memory,
        first_gpu=args.first_gpu,
    )


def add_arguments(parser: Any) -> None:
    """What every script here takes."""
    parser.add_argument(
        "--pair", action="append", required=True, help="NAME=DIR with target/ and draft/ in it"
    )
    parser.add_argument("--stock", required=True, help="PYTHONPATH of an unpatched sglang")
    parser.add_argument(
        "--patched", required=True, help="PYTHONPATH of the tree with patch set ddtree-engine"
    )
    parser.add_argument("--logs", default="logs", help="directory for the servers' logs")
    parser.add_argument("--out", default="result.json", help="where the figures go")
    parser.add_argument("--gpus", type=int, default=1, help="servers are dealt to this many")
    parser.add_argument("--first-gpu", type=int, default=0)
    parser.add_argument("--up-s", type=float, default=200, help="seconds that servers get to come up")
    parser.add_argument("--max-bs", type=int, default=16)
    parser.add_argument("--tokens", type=int, default=65536, help="KV slots of each server")
    parser.add_argument("--context", type=int, default=4096)
    parser.add_argument("--memory", type=float, default=0.5)
