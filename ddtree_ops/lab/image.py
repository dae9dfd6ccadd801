"""What every lab node has on disk: a venv with the real SGLang wheel and the reference engine, and models.

Built once below the cache directory; nodes get copies, links or an overlay of it.
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import os
import shutil
import subprocess
import sys
import tempfile
import venv
import zipfile
from pathlib import Path

from ddtree_ops.model.errors import Failed

SGLANG = "0.5.11"
_WHEEL = f"sglang-{SGLANG}-cp311-cp311-manylinux_2_34_x86_64.whl"
_WHEEL_SHA256 = "fe0748beaff218d3e16c9018a5e19f018db06fc3c7ac4f90d2f93da1cf074b6f"
_REFERENCE = Path(__file__).with_name("reference")
_FORMAT = "1"  # changes with the layout below


def cache_directory() -> Path:
    """Where built things are kept: DDTREE_OPS_CACHE, else below XDG_CACHE_HOME."""
    chosen = os.environ.get("DDTREE_OPS_CACHE")
    if chosen:
        return Path(chosen).absolute()
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home).absolute() / "ddtree-ops"


def node_image(cache: Path) -> Path:
    """The directory that holds `opt/sglang` and `opt/models`, built now if it is not there yet."""
    image = cache / f"node-{_fingerprint()}"
    if image.is_dir():
        return image
    cache.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=cache, prefix=".node-") as scratch:
        built = Path(scratch) / "image"
        _build(built, _wheel(cache))
        try:
            built.rename(image)
        except OSError:  # another process was first
            if not image.is_dir():
                raise
    return image


def copy_image(image: Path, root: Path) -> None:
    """Lays the image into a node's root: numpy as hard links, all that a node may change as copies."""
    for part in image.rglob("*"):
        target = root / part.relative_to(image)
        if part.is_symlink():
            target.symlink_to(part.readlink())
        elif part.is_dir():
            target.mkdir(exist_ok=True, parents=True)
        else:
            _place(part, target, link="numpy" in str(part.relative_to(image)))


def base_prefix() -> Path:
    """The installation beneath the venv, which a node must see."""
    return Path(sys.base_prefix).resolve()


def _place(source: Path, target: Path, *, link: bool) -> None:
    if link:
        try:
            os.link(source, target)
        except OSError:  # another file system
            link = False
    if not link:
        shutil.copy2(source, target)


def _build(image: Path, wheel: Path) -> None:
    prefix = image / "opt/sglang"
    venv.EnvBuilder(symlinks=True, with_pip=False).create(prefix)
    site = next(prefix.glob("lib/python3*/site-packages"))
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(site)
    _copy_distribution("numpy", site)
    models = image / "opt/models"
    models.mkdir(parents=True)
    if _REFERENCE.is_dir():
        no_models = shutil.ignore_patterns("models", "__pycache__")
        shutil.copytree(_REFERENCE, site / "reference_engine", ignore=no_models)
        for model in sorted((_REFERENCE / "models").glob("*")):
            if model.is_dir():
                shutil.copytree(model, models / model.name)


def _copy_distribution(name: str, site: Path) -> None:
    """Copies an installed package as its RECORD lists it: same version, no download."""
    for file in importlib.metadata.distribution(name).files or ():
        if ".." not in file.parts:
            target = site / file
            target.parent.mkdir(parents=True, exist_ok=True)
            source = Path(str(file.locate()))
            if source.exists():
                shutil.copy2(source, target)


def _wheel(cache: Path) -> Path:
    """SGLang's own wheel, checked by its hash; never imported, so one platform's wheel serves all."""
    wheel = cache / _WHEEL
    if not wheel.exists():
        with tempfile.TemporaryDirectory(dir=cache, prefix=".wheel-") as scratch:
            _download(Path(scratch))
            (Path(scratch) / _WHEEL).rename(wheel)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    if digest != _WHEEL_SHA256:
        raise Failed(str(wheel), f"got sha256 {digest}, expected {_WHEEL_SHA256}", hint=f"rm {wheel}")
    return wheel


def _download(folder: Path) -> None:
    platform = (
        "--platform=manylinux_2_34_x86_64",
        "--python-version=3.11",
        "--implementation=cp",
        "--abi=cp311",
    )
    pip = (*_pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", *platform)
    done = subprocess.run(
        (*pip, "--dest", str(folder), f"sglang=={SGLANG}"), capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        raise Failed(
            "lab", f"pip could not download sglang=={SGLANG}: {last}", hint="check pip's index and network"
        )


def _pip() -> tuple[str, ...]:
    for python in (sys.executable, getattr(sys, "_base_executable", sys.executable)):
        if (
            subprocess.run((python, "-m", "pip", "--version"), capture_output=True, check=False).returncode
            == 0
        ):
            return (python, "-m", "pip")
    return ("pip",)


def _fingerprint() -> str:
    digest = hashlib.sha256()
    parts = (_FORMAT, _WHEEL_SHA256, sys.version, str(base_prefix()), importlib.metadata.version("numpy"))
    digest.update("\n".join(parts).encode())
    for path in sorted(_REFERENCE.rglob("*")):
        if path.is_file() and "__pycache__" not in path.parts:
            digest.update(str(path.relative_to(_REFERENCE)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
