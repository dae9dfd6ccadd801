"""The other clients: how each is installed, called, and read into our metric names (seconds, per second)."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from host import HERE
from ideal import Run

OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "OMP_NUM_THREADS": "1"}
Figures = dict[str, object]


@dataclass(frozen=True, slots=True)
class Peer:
    """One client; `folder` holds its virtual environment, its tokenizer and its results."""

    name: str
    packages: tuple[str, ...]
    words: Callable[[str, Run, Path], list[str]]
    read: Callable[[Path], Figures]
    bare: tuple[str, ...] = ()  # installed without what they depend on
    warmup: int = 0  # requests that it sends before it measures
    environment: Mapping[str, str] = field(default_factory=dict)

    def command(self, address: str, run: Run, folder: Path) -> list[str]:
        """argv of one run, results of an earlier one removed."""
        shutil.rmtree(folder / "out", ignore_errors=True)
        (folder / "out").mkdir(parents=True)
        return self.words(address, run, folder)


def install(peer: Peer, folder: Path) -> None:
    """Makes the peer's virtual environment and tokenizer where they are missing."""
    home = folder / peer.name
    python = home / "venv" / "bin" / "python"
    if not python.exists():
        subprocess.run([sys.executable, "-m", "venv", str(home / "venv")], check=True)
        pip = [str(python), "-m", "pip", "install", "--quiet"]
        if peer.bare:
            subprocess.run([*pip, "--no-deps", *peer.bare], check=True)
        subprocess.run([*pip, *peer.packages], check=True)
    if not (home / "tokenizer").exists():
        subprocess.run([str(python), str(HERE / "tokenizer.py"), str(home / "tokenizer")], check=True)


def _sglang(address: str, run: Run, folder: Path) -> list[str]:
    host, port = address.removeprefix("http://").split(":")
    return [
        f"{folder}/venv/bin/python", "-m", "sglang.bench_serving", "--backend", "sglang", "--host", host,
        "--port", port, "--model", "truth", "--tokenizer", f"{folder}/tokenizer",
        "--dataset-name", "random-ids",
        "--random-input-len", "16", "--random-output-len", str(run.tokens), "--random-range-ratio", "1",
        "--num-prompts", str(run.requests), "--max-concurrency", str(run.concurrency),
        "--output-file", f"{folder}/out/result.jsonl", "--disable-tqdm",
    ]  # fmt: skip


def _read_sglang(folder: Path) -> Figures:
    data = json.loads((folder / "out" / "result.jsonl").read_text().splitlines()[-1])

    def spread(name: str) -> Figures:
        pairs = (("mean", "mean"), ("p50", "median"), ("p99", "p99"))
        return {ours: data[f"{theirs}_{name}_ms"] / 1000 for ours, theirs in pairs}

    return {
        "ttft": spread("ttft"), "e2e": spread("e2e_latency"), "tpot": spread("tpot"), "itl": spread("itl"),
        "tokens": data["total_output_tokens"], "output_rate_whole": data["output_throughput"],
        "accept_token_weighted": data["accept_length"],
    }  # fmt: skip


def _aiperf(address: str, run: Run, folder: Path) -> list[str]:
    return [
        f"{folder}/venv/bin/aiperf", "profile", "-m", "truth", "--tokenizer", f"{folder}/tokenizer",
        "--url", address,
        "--endpoint-type", "chat", "--streaming", "--concurrency", str(run.concurrency),
        "--request-count", str(run.requests), "--isl", "16", "--osl", str(run.tokens),
        "--use-server-token-count",
        "--ui", "none", "--artifact-dir", f"{folder}/out",
    ]  # fmt: skip


def _read_aiperf(folder: Path) -> Figures:
    data = json.loads((folder / "out" / "profile_export_aiperf.json").read_text())

    def spread(name: str, scale: float = 1000.0) -> Figures:
        return {
            ours: data[name][part] / scale for ours, part in (("mean", "avg"), ("p50", "p50"), ("p99", "p99"))
        }

    return {
        "ttft": spread("time_to_first_token"), "e2e": spread("request_latency"),
        "tpot": spread("inter_token_latency"), "gap": spread("inter_chunk_latency"),
        "tokens": data["total_output_tokens"]["avg"],
        "output_rate_whole": data["output_token_throughput"]["avg"],
    }  # fmt: skip


def _genai(address: str, run: Run, folder: Path) -> list[str]:
    return [
        f"{folder}/venv/bin/genai-bench", "benchmark", "--api-backend", "sglang", "--api-base", address,
        "--api-key", "none", "--task", "text-to-text", "--api-model-name", "truth",
        "--model-tokenizer", f"{folder}/tokenizer", "--num-concurrency", str(run.concurrency),
        "--traffic-scenario", f"D(16,{run.tokens})", "--max-time-per-run", "5",
        "--max-requests-per-run", str(run.requests), "--experiment-base-dir", f"{folder}/out",
        "--experiment-folder-name", "run", "--log-dir", f"{folder}/out",
    ]  # fmt: skip


def _read_genai(folder: Path) -> Figures:
    (path,) = (folder / "out" / "run").glob("D*.json")
    data = json.loads(path.read_text())["aggregated_metrics"]

    def spread(name: str) -> Figures:
        return {part: data["stats"][name][part] for part in ("mean", "p50", "p99")}

    return {
        "ttft": spread("ttft"), "e2e": spread("e2e_latency"), "tpot": spread("tpot"),
        "tokens": data["stats"]["num_output_tokens"]["sum"],
        "output_rate_whole": data["mean_output_throughput_tokens_per_s"],
    }  # fmt: skip


SGLANG_NEEDS = (
    "transformers<5", "aiohttp", "numpy", "requests", "tqdm", "pillow", "pybase64", "psutil", "datasets",
    "pydantic", "orjson", "ipython", "packaging", "torch", "torchvision", "starlette", "pyzmq",
)  # fmt: skip
PEERS = {
    peer.name: peer
    for peer in (
        Peer(
            "sglang", SGLANG_NEEDS,
            _sglang, _read_sglang, bare=("sglang==0.5.11",), warmup=1, environment=OFFLINE,
        ),
        Peer("aiperf", ("aiperf",), _aiperf, _read_aiperf, environment={"OMP_NUM_THREADS": "1"}),
        Peer("genai-bench", ("genai-bench",), _genai, _read_genai, environment=OFFLINE),
    )
}  # fmt: skip
