"""Settings that a tree cannot honour end the start-up with a message: each is tried and shown."""

from __future__ import annotations

import argparse
import time

from engines import Cell, Server, add_arguments, setup_of, start, stop

WRONG = {
    "page size 16": (("--page-size", "16"), "expected 1"),
    "another attention backend": (("--attention-backend", "flashinfer"), "expected triton"),
    "budget 0": (("--speculative-ddtree-budget", "0"), "expected 1 to 1024"),
    "budget 5000": (("--speculative-ddtree-budget", "5000"), "expected 1 to 1024"),
    "cap 0": (("--speculative-ddtree-topk-cap", "0"), "expected 1 to 1024"),
    "another algorithm": (("--speculative-algorithm", "NGRAM"), "expected DFLASH"),
    "graphs that cannot fit": (
        (
            "--speculative-ddtree-budget",
            "1024",
            "--cuda-graph-max-bs",
            "4096",
            "--max-running-requests",
            "4096",
        ),
        "GiB free",
    ),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    args = parser.parse_args()
    setup = setup_of(args)
    pair = next(iter(setup.pairs))
    cells = [Cell(pair=pair, kind="tree", budget=16, cap=4, extra=flags) for flags, _ in WRONG.values()]
    servers = [
        start([cell], setup, args.gpus, base_port=27000 + 200 * at)[0] for at, cell in enumerate(cells)
    ]
    deadline = time.monotonic() + args.up_s
    while any(server.process.poll() is None for server in servers) and time.monotonic() < deadline:
        time.sleep(0.5)
    stop(servers)
    wanted = [words for _, words in WRONG.values()]
    told = [_told(server, words) for server, words in zip(servers, wanted, strict=True)]
    for name, server, line in zip(WRONG, servers, told, strict=True):
        print(f"- {name}: {line or 'NOT REFUSED: ' + server.tail(5)}")
    raise SystemExit(0 if all(told) else 1)


def _told(server: Server, words: str) -> str | None:
    """The line that refuses, when there is one."""
    lines = server.log.read_text(errors="replace").splitlines()
    return next((line for line in reversed(lines) if words in line and "server_args=" not in line), None)


if __name__ == "__main__":
    main()
