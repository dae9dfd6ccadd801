"""The wheel alone is a working tool: what lies at the repository's top travels in it."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def unpacked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    argv = (sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder))
    subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    return folder / "site"


def ops(unpacked: Path, *words: str) -> str:
    environment = os.environ | {"PYTHONPATH": str(unpacked)}
    argv = (sys.executable, "-m", "ddtree_ops", *words)
    done = subprocess.run(argv, cwd=unpacked, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_wheel_lists_its_patch_sets(unpacked: Path) -> None:
    listed = {line.split()[0] for line in ops(unpacked, "patch", "list").splitlines()}
    assert listed >= {"verify-width", "graph-width", "ddtree-engine"}


def test_the_wheel_holds_templates_playbooks_and_the_reference_engine(unpacked: Path) -> None:
    wanted = (
        "ddtree_ops/_data/templates/engine.service.j2",
        "ddtree_ops/_data/playbooks/deploy.yaml",
        "ddtree_ops/_data/playbooks/rollback.yaml",
        "ddtree_ops/checks/smoke.yaml",
        "ddtree_ops/lab/reference/models/target/model.npz",
        "ddtree_ops/lab/systemd/hosts.sh",
    )
    assert [path for path in wanted if not (unpacked / path).is_file()] == []
