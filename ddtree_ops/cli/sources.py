"""The SGLang that a `patch` command looks at: a release's wheel, a tree, or a node's install."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from ddtree_ops.lab.image import cache_directory
from ddtree_ops.model.errors import OpsError, UsageError
from ddtree_ops.patching.source import Source, open_source

DEFAULT_VERSION = "0.5.11"
VERSION = re.compile(r"\d+(\.\d+)*([a-z]+\d+)?(\.post\d+)?(\+[A-Za-z0-9.]+)?")
PLATFORMS = ("manylinux_2_34_x86_64", "manylinux_2_28_x86_64", "manylinux2014_x86_64", "any")
DOWNLOAD_TIMEOUT_S = 300


def source_of(version: str | None, tree: Path | None) -> Source:
    """The sources in a directory or wheel, or those of a release, downloaded once and kept."""
    if version is not None and tree is not None:
        raise UsageError("--tree", "got --sglang as well, expected one of them")
    return open_source(tree) if tree is not None else open_source(wheel(version or DEFAULT_VERSION))


def wheel(version: str) -> Path:
    """A release's wheel in the cache; downloaded without its dependencies when it is not there."""
    if not VERSION.fullmatch(version):
        raise UsageError("--sglang", f"got {version!r}, expected a version such as {DEFAULT_VERSION}")
    public = version.split("+", 1)[0]  # a local suffix names a rebuild; the index has the release
    folder = cache_directory() / "wheels"
    folder.mkdir(parents=True, exist_ok=True)
    for pattern in (f"sglang-{public}-*.whl",):
        found = sorted(folder.glob(pattern))
        if found:
            return found[0]
    last = ""
    for python in ("3.11", "3.12"):
        done = _download(public, folder, python)
        if done.returncode == 0:
            return next(iter(sorted(folder.glob(f"sglang-{public}-*.whl"))))
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
    raise OpsError(
        f"sglang {public}",
        f"could not be downloaded: {last}",
        hint="ddtree-ops patch … --tree DIR works offline",
    )


def _download(version: str, folder: Path, python: str) -> subprocess.CompletedProcess[str]:
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    argv = (
        sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:",
        "--python-version", python, *platforms, "--dest", str(folder), f"sglang=={version}",
    )  # fmt: skip
    try:
        return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=DOWNLOAD_TIMEOUT_S)
    except subprocess.TimeoutExpired as error:
        raise OpsError(
            f"sglang {version}", f"got no wheel in {DOWNLOAD_TIMEOUT_S} s, expected one"
        ) from error
