"""The selftest's verdict on a node, its GPU stood in for by this machine's CPU and Triton's interpreter."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree_ops.model.errors import Failed
from ddtree_ops.model.facts import Gpu
from ddtree_ops.model.profile import Profile
from ddtree_ops.run import selftest

SMALL_TREE = Profile(
    name="p", service="s", venv="/opt/venv", model="/m", drafter="/d", port=1, budget=4, graph_max_batch=2
)
GPU = Gpu(
    index=3, name="H200", arch="sm_90", driver="580", memory_total_mib=143_000, memory_used_mib=0, link="PCIe"
)
CONFIG = '{"vocab_size": 512, "max_position_embeddings": 1024, "block_size": 2}'


@dataclass
class Interpreted:
    """A link that runs what it is given on this machine's CPU, and remembers how it was asked."""

    asked: list[tuple[str, ...]] = field(default_factory=list)

    def run(self, argv: Sequence[str], *, stdin: bytes, timeout_s: float) -> SimpleNamespace:
        self.asked.append(tuple(argv))
        source = stdin.decode().replace("'--device', 'cuda'", "'--device', 'cpu'")
        source = source.replace("'--dtype', 'bfloat16'", "'--dtype', 'float32'")
        done = subprocess.run(
            [sys.executable, "-"], input=source.encode(), capture_output=True, check=False, timeout=timeout_s
        )
        return SimpleNamespace(code=done.returncode, stdout=done.stdout, stderr=done.stderr)


@pytest.fixture
def node(make_facts: Callable[..., object]) -> SimpleNamespace:
    facts = make_facts(gpus=(GPU,), model_files=(("config.json", CONFIG),))
    quiet = SimpleNamespace(progress=lambda *_: None)
    return SimpleNamespace(
        name="gpu1",
        link=Interpreted(),
        node=SimpleNamespace(probe=lambda **_: facts),
        known=lambda: facts,
        world=SimpleNamespace(screen=quiet),
    )


@pytest.fixture(scope="session")
def site(patched: tuple[Path, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A release's whole tree, as it is staged."""
    root = tmp_path_factory.mktemp("release") / "site"
    for part in reversed(patched):
        shutil.copytree(part, root, dirs_exist_ok=True)
    return root


def test_the_staged_release_passes_and_its_evidence_counts_rows_and_memory(node, site) -> None:
    gate = selftest.prove(node, SMALL_TREE, str(site), 300)
    assert gate.passed, gate.evidence
    assert "0 wrong, 0 never written on cpu, interpreted" in gate.evidence
    assert gate.evidence.endswith("MiB for KV indices, mask and logits")
    assert node.link.asked == [("env", "CUDA_VISIBLE_DEVICES=3", "/opt/venv/bin/python", "-")]


def test_the_stock_release_fails_with_the_cause(node, stock) -> None:
    gate = selftest.prove(node, SMALL_TREE, str(stock), 300)
    assert not gate.passed
    assert "width: 2 rows a request, expected 5" in gate.evidence


def test_a_tree_that_can_not_run_is_an_error_with_its_reason(node, tmp_path) -> None:
    with pytest.raises(Failed, match=r"got exit 2 \(.*expected sglang in"):
        selftest.prove(node, SMALL_TREE, str(tmp_path), 300)
