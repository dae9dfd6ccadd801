"""Values that many tests start from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddtree_ops.model.facts import DdtreeFlags, NodeFacts, Sglang, Sources, Unit
from ddtree_ops.model.profile import Profile

HAND_WRITTEN = """\
[Unit]
Description=SGLang by hand
After=network.target nvidia-persistenced.service

[Service]
ExecStart=/opt/venv/bin/python -m sglang.launch_server --model-path /models/m --port 30001 \\
  --speculative-algorithm DFLASH --speculative-draft-model-path /models/d \\
  --speculative-ddtree-budget 7 --quantization none
Environment=NCCL_DEBUG=WARN
OOMScoreAdjust=-500

[Install]
WantedBy=multi-user.target
"""

KNOWN_FLAGS = frozenset(
    {
        "--model-path", "--host", "--port", "--tp-size", "--speculative-algorithm", "--disable-cuda-graph",
        "--speculative-draft-model-path", "--speculative-ddtree-budget", "--speculative-ddtree-topk-cap",
        "--cuda-graph-max-bs",
    }
)  # fmt: skip


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with an early test first, then by their number of tests: workers take whole files in this order."""
    sizes = Counter(item.path for item in items)
    early = {item.path for item in items if item.get_closest_marker("early")}
    items.sort(key=lambda item: (item.path not in early, -sizes[item.path]))


@pytest.fixture
def profile() -> Profile:
    return Profile(
        name="p", service="sglang", venv="/opt/venv", model="/models/m", drafter="/models/d", port=30001,
        budget=16, topk=4,
    )  # fmt: skip


@pytest.fixture
def make_facts() -> Callable[..., NodeFacts]:
    """Facts of a healthy node that runs the hand-written unit; keywords replace fields, `sglang` its own."""

    def make(**changes: Any) -> NodeFacts:
        sglang = Sglang(
            version="0.5.11",
            package="/opt/venv/lib/python3.11/site-packages",
            sources=Sources.STOCK,
            ddtree=DdtreeFlags.OURS,
            known_flags=KNOWN_FLAGS,
        )
        facts = NodeFacts(
            node="gpu1", hostname="gpu1", os="Debian 12", kernel="6.1", machine="x86_64", python="3.11.2",
            user="root", root=True, systemd="252", state_dir="/var/lib/ddtree-ops",
            unit_dir="/etc/systemd/system", clock_skew_s=0.0, disk_free_mib=100_000, venv_python="3.11.2",
            sglang=replace(sglang, **changes.pop("sglang", {})),
            unit=Unit(name="sglang.service", text=HAND_WRITTEN, active="active", sub="running"),
            paths=(("/models/m", True), ("/models/d", True)),
        )  # fmt: skip
        return replace(facts, **changes)

    return make
