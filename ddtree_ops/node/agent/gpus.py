"""GPUs by nvidia-smi; a node without it, or one where it hangs, says so and goes on."""

from __future__ import annotations

import csv
import re
import subprocess
import time

from .base import Json

DEADLINE_S = 10.0
GPU_FIELDS = (
    "index,uuid,name,compute_cap,driver_version,memory.total,memory.used,clocks.sm,power.draw,temperature.gpu"
)
PROCESS_FIELDS = "gpu_uuid,pid,process_name,used_memory"
QUESTIONS = (
    ("nvidia-smi", "--query-gpu=" + GPU_FIELDS, "--format=csv,noheader,nounits"),
    ("nvidia-smi", "--query-compute-apps=" + PROCESS_FIELDS, "--format=csv,noheader,nounits"),
    ("nvidia-smi", "topo", "-m"),
    ("nvidia-smi", "nvlink", "--status"),
)


def ask_gpus() -> list[subprocess.Popen[str]]:
    """Starts nvidia-smi's answers, so that the rest of a probe need not wait for them."""
    try:
        return [
            subprocess.Popen(
                question,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                errors="replace",
            )
            for question in QUESTIONS
        ]
    except OSError:
        return []


def gpu_facts(asked: list[subprocess.Popen[str]]) -> tuple[list[Json], str]:
    """(GPUs, why there are none)."""
    if not asked:
        return [], "nvidia-smi is not on this node"
    deadline = time.monotonic() + DEADLINE_S
    answers = [_answer(process, deadline) for process in asked]
    if answers[0] is None:
        return [], f"nvidia-smi did not answer within {DEADLINE_S:.0f} s"
    if asked[0].returncode != 0:
        return [], f"nvidia-smi failed with exit {asked[0].returncode}: {first_line(answers[0])}"
    gpus, uuids = parse_gpus(answers[0])
    if not gpus:
        return [], "nvidia-smi lists no GPU"
    parse_processes(answers[1] or "", gpus, uuids)
    links = parse_links(answers[2] or "", answers[3] or "", len(gpus))
    for gpu, link in zip(gpus, links):
        gpu["link"] = link
    return gpus, ""


def _answer(process: subprocess.Popen[str], deadline: float) -> str | None:
    try:
        return process.communicate(timeout=max(deadline - time.monotonic(), 0.1))[0]
    except subprocess.TimeoutExpired:
        process.kill()  # one that sleeps in the driver dies later, or never: no waiting for it
        return None


def parse_gpus(text: str) -> tuple[list[Json], list[str]]:
    """(fields of model.facts.Gpu, uuids in the same order) of --query-gpu's rows."""
    gpus, uuids = [], []
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) != len(GPU_FIELDS.split(",")):
            continue
        index, uuid, name, cap, driver, total, used, clock, power, heat = row
        uuids.append(uuid)
        gpus.append(
            {
                "index": int(index),
                "name": name,
                "arch": "sm_" + cap.replace(".", ""),
                "driver": driver,
                "memory_total_mib": _whole(total) or 0,
                "memory_used_mib": _whole(used) or 0,
                "link": "none",
                "sm_clock_mhz": _whole(clock),
                "power_w": _decimal(power),
                "temperature_c": _whole(heat),
                "processes": [],
            }
        )
    return gpus, uuids


def parse_processes(text: str, gpus: list[Json], uuids: list[str]) -> None:
    """Puts --query-compute-apps' rows under their GPUs."""
    for row in csv.reader(text.splitlines(), skipinitialspace=True):
        if len(row) < 4 or row[0] not in uuids:
            continue
        # a process's name may hold commas
        process = {"pid": int(row[1]), "name": ", ".join(row[2:-1]), "memory_mib": _whole(row[-1]) or 0}
        gpus[uuids.index(row[0])]["processes"].append(process)


def parse_links(topology: str, nvlink: str, count: int) -> list[str]:
    """How each GPU reaches others: NVLink where topo's row has NV# or nvlink shows a live link."""
    rows = {}
    for line in re.sub(r"\x1b\[[0-9;]*m", "", topology).splitlines():
        words = line.split()
        if words and re.fullmatch(r"GPU\d+", words[0]) and "X" in words[1:]:
            rows[int(words[0][3:])] = words[1 : count + 1]
    live = set()
    gpu = -1
    for line in nvlink.splitlines():
        head = re.match(r"GPU (\d+):", line)
        gpu = int(head.group(1)) if head else gpu
        if re.search(r"Link \d+: [\d.]+ GB/s", line):
            live.add(gpu)
    return [_link(rows.get(index, []), index in live) for index in range(count)]


def _link(row: list[str], live: bool) -> str:
    if live or any(re.fullmatch(r"NV\d+", word) for word in row):
        return "NVLink"
    return "PCIe" if len(row) > 1 else "none"


def first_line(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    return lines[0] if lines else "no word why"


def _whole(text: str) -> int | None:
    number = _decimal(text)
    return None if number is None else int(number)


def _decimal(text: str) -> float | None:
    """nvidia-smi writes [N/A] or [Not Supported] for what a GPU does not tell."""
    try:
        return float(text)
    except ValueError:
        return None
