"""Releases: directories built beside, complete and on disk before their name exists."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import shutil
from typing import Callable

from .base import RELEASE_ID, Json, Place, Problem
from .files import exclusive, read_json, remove_tree, sync_file_system, sync_folder, write_file, write_json
from .unitfile import ORIGIN, effective_unit, remember_unit

MANIFEST = "release.json"
FICLONE = 0x40049409  # linux/fs.h: share the blocks of another file


def list_releases(place: Place) -> list[str]:
    """Ids of complete releases, oldest first."""
    try:
        names = [name for name in os.listdir(place.releases) if RELEASE_ID.fullmatch(name)]
    except FileNotFoundError:
        return []
    whole = [name for name in names if os.path.exists(os.path.join(place.releases, name, MANIFEST))]
    return sorted(whole, key=lambda name: (not name.isdigit(), int(name) if name.isdigit() else 0, name))


def read_manifest(place: Place, release: str) -> Json | None:
    manifest = read_json(os.path.join(place.release(release), MANIFEST))
    return manifest if isinstance(manifest, dict) else None


def keep_found(place: Place, manifest: Json) -> bool:
    """Makes a release of what is there: 0, or a later one after a change by hand; False when it exists.

    The unit's bytes are copied, not rendered anew.
    """
    release = str(manifest.get("id"))
    with exclusive(place):
        if os.path.exists(place.release(release)):
            return False
        origin = remember_unit(place)
        unit = effective_unit(place)

        def fill(folder: str) -> None:
            if unit is not None:
                write_file(os.path.join(folder, place.unit_name), unit)
            write_json(os.path.join(folder, ORIGIN), {k: v for k, v in origin.items() if k != "data"})
            write_json(os.path.join(folder, MANIFEST), manifest)

        _build(place, release, fill)
        return True


def stage_release(place: Place, manifest: Json, unit: str, base: str | None, files: list[Json]) -> bool:
    """Builds a release; False when the very same one is there already."""
    release = str(manifest.get("id"))
    paths = [_inside(file["path"]) for file in files]
    with exclusive(place):
        there = read_manifest(place, release)
        if there is not None:
            _same_or_refuse(there, manifest)
            return False

        def fill(folder: str) -> None:
            if base is not None:
                _plant_tree(base, os.path.join(folder, "site"), set(paths))
            for path, file in zip(paths, files):
                target = os.path.join(folder, "site", path)
                os.makedirs(os.path.dirname(target), exist_ok=True)
                _new_file(target, file["text"])
            _new_file(os.path.join(folder, place.unit_name), unit)
            write_json(os.path.join(folder, MANIFEST), manifest)

        _build(place, release, fill)
        return True


def _same_or_refuse(there: Json, wanted: Json) -> None:
    if there.get("fingerprint") != wanted.get("fingerprint"):
        raise Problem(
            f"release {wanted['id']}",
            f"is staged with fingerprint {there.get('fingerprint')}, expected {wanted.get('fingerprint')}",
            "someone else staged it meanwhile: plan again",
            "refused",
        )


def _build(place: Place, release: str, fill: Callable[[str], None]) -> None:
    """Fills a folder beside, brings it to disk and renames it; what fails leaves nothing."""
    beside = os.path.join(place.releases, ".new")
    remove_tree(beside)
    os.mkdir(beside, 0o755)
    try:
        fill(beside)
        sync_file_system(beside)
        os.rename(beside, place.release(release))
    except BaseException:
        with contextlib.suppress(OSError):
            remove_tree(beside)
        raise
    sync_folder(place.releases)


def _inside(path: str) -> str:
    """A path below `sglang/`, or a refusal: a release writes nowhere else."""
    parts = path.split("/")
    if parts[0] != "sglang" or len(parts) < 2 or any(part in ("", ".", "..") for part in parts):
        raise Problem(
            "file", f"got {path!r}, expected a path below sglang/", "correct the patch set", "usage"
        )
    return path


def _plant_tree(base: str, site: str, replaced: set[str]) -> None:
    """The base's whole `sglang` package at `site`, less the files that come anew."""
    source = os.path.join(base, "sglang")
    if not os.path.isdir(source):
        raise Problem(
            "sglang", f"no package at {source}", "install SGLang into the profile's venv", "refused"
        )
    place_file = _copier()
    for folder, subfolders, names in os.walk(source):
        subfolders[:] = [name for name in subfolders if name != "__pycache__"]
        below = os.path.relpath(folder, base)
        os.makedirs(os.path.join(site, below), exist_ok=True)
        for name in names:
            path = os.path.join(below, name)
            if path not in replaced:
                place_file(os.path.join(folder, name), os.path.join(site, path))


def _copier() -> Callable[[str, str], None]:
    """The cheapest way that works here: shared blocks, a hard link, a copy; found out once."""
    ways: list[Callable[[str, str], object]] = [_reflink, os.link, shutil.copy2]

    def place_file(original: str, target: str) -> None:
        while True:
            try:
                ways[0](os.path.realpath(original), target)
                return
            except OSError as error:
                with contextlib.suppress(FileNotFoundError):
                    os.unlink(target)
                full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EROFS)
                if full or len(ways) == 1:
                    raise
                ways.pop(0)

    return place_file


def _reflink(original: str, target: str) -> None:
    with open(original, "rb") as source, open(target, "wb") as copy:
        fcntl.ioctl(copy.fileno(), FICLONE, source.fileno())
    shutil.copystat(original, target)


def _new_file(path: str, text: str) -> None:
    """A new inode always: the name may be a hard link into the venv."""
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with open(path, "x", encoding="utf-8", newline="") as file:
        file.write(text)
