"""What nvidia-smi says, and what is said of a node where it says nothing."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from ddtree_ops.model.facts import Gpu, GpuProcess
from ddtree_ops.node.agent import gpus

CASES = Path(__file__).parents[2] / "cases/nvidia-smi"


def parsed(case: str) -> tuple[Gpu, ...]:
    texts = [
        (CASES / case / name).read_text() for name in ("gpus.csv", "processes.csv", "topo.txt", "nvlink.txt")
    ]
    found, uuids = gpus.parse_gpus(texts[0])
    gpus.parse_processes(texts[1], found, uuids)
    for gpu, link in zip(found, gpus.parse_links(texts[2], texts[3], len(found)), strict=True):
        gpu["link"] = link
    return TypeAdapter(tuple[Gpu, ...]).validate_python(found)


def test_a_gpu_comes_with_its_processes_and_what_it_does_not_tell_is_none() -> None:
    first, second = parsed("b300-nvlink")
    assert (first.name, first.arch, first.driver, first.link) == (
        "NVIDIA B300 SXM6 AC",
        "sm_103",
        "580.95.05",
        "NVLink",
    )
    assert (first.memory_total_mib, first.memory_free_mib, first.sm_clock_mhz, first.power_w) == (
        275040,
        13618,
        1920,
        412.31,
    )
    assert first.processes == (
        GpuProcess(pid=41234, name="sglang::scheduler_TP0", memory_mib=261408),
        GpuProcess(pid=41999, name="/opt/a, b/python", memory_mib=0),
    )
    assert (second.power_w, second.temperature_c, second.processes) == (None, 31, ())


@pytest.mark.parametrize(
    ("case", "links"), [("b300-nvlink", ["NVLink"] * 2), ("rtx-pcie", ["PCIe"] * 2), ("one-gpu", ["none"])]
)
def test_the_link_is_nvlink_pcie_or_none(case: str, links: list[str]) -> None:
    assert [gpu.link for gpu in parsed(case)] == links


@pytest.mark.parametrize(
    ("script", "note"),
    [
        ("echo 'NVIDIA-SMI has failed'; exit 9", "nvidia-smi failed with exit 9: NVIDIA-SMI has failed"),
        ("true", "nvidia-smi lists no GPU"),
        ("exec sleep 60", "nvidia-smi did not answer within 0 s"),
    ],
)
def test_a_driver_that_fails_or_hangs_is_noted_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, note: str
) -> None:
    (tmp_path / "nvidia-smi").write_text(f"#!/bin/sh\n{script}\n")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(gpus, "DEADLINE_S", 0.3 if "sleep" in script else 10)
    started = time.monotonic()
    asked = gpus.ask_gpus()
    assert gpus.gpu_facts(asked) == ([], note)
    assert time.monotonic() - started < 10
    for process in asked:
        process.communicate()


def test_a_node_without_nvidia_smi_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert gpus.gpu_facts(gpus.ask_gpus()) == ([], "nvidia-smi is not on this node")
