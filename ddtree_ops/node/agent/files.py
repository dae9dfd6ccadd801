"""Files that are either as they were or as they should be, whatever happens in between."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import json
import os
import shutil
import time
from typing import Any, Iterator

from .base import Place, Problem

MUTEX_WAIT_S = 30.0


@contextlib.contextmanager
def exclusive(place: Place) -> Iterator[None]:
    """One verb at a time for a service; the kernel lets go when its holder dies."""
    os.makedirs(place.releases, mode=0o755, exist_ok=True)
    handle = os.open(place.mutex, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _wait_for(handle)
        yield
    finally:
        os.close(handle)


def _wait_for(handle: int) -> None:
    deadline = time.monotonic() + MUTEX_WAIT_S
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        if time.monotonic() > deadline:
            raise Problem(
                "agent", f"another verb has been at work for over {MUTEX_WAIT_S:.0f} s", "try again"
            )
        time.sleep(0.02)


def write_file(path: str, data: bytes, mode: int = 0o644) -> None:
    """Replaces `path` by rename, on disk when this returns; an error leaves the old file alone."""
    beside = _beside(path)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(beside)
    try:
        handle = os.open(beside, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fchmod(file.fileno(), mode)
            os.fsync(file.fileno())
        os.rename(beside, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise
    sync_folder(os.path.dirname(path))


def write_json(path: str, value: Any, mode: int = 0o644) -> None:
    write_file(path, (json.dumps(value, indent=1, sort_keys=True) + "\n").encode(), mode)


def read_text(path: str) -> str:
    """All of a text file; "" where it cannot be read."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return ""


def read_json(path: str) -> Any:
    """The parsed file; None when it is not there."""
    try:
        with open(path, "rb") as file:
            return json.loads(file.read().decode())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise Problem(path, f"is no JSON: {error}", "look at it on the node, and move it away") from error


def replace_link(path: str, target: str | None) -> None:
    """Points a symlink at target by rename; None removes it."""
    if target is None:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(path)
    else:
        beside = _beside(path)
        with contextlib.suppress(FileNotFoundError):
            os.unlink(beside)
        os.symlink(target, beside)
        try:
            os.rename(beside, path)
        except OSError:
            os.unlink(beside)
            raise
    sync_folder(os.path.dirname(path))


def link_name(path: str) -> str | None:
    """The last part of what a symlink points at; None when there is no link."""
    try:
        return os.path.basename(os.readlink(path))
    except OSError:
        return None


def remove_file(path: str) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
        sync_folder(os.path.dirname(path))


def remove_tree(path: str) -> None:
    if os.path.lexists(path):
        shutil.rmtree(path)


def sync_folder(path: str) -> None:
    handle = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def sync_file_system(path: str) -> None:
    """Everything written on the path's file system so far is on disk when this returns."""
    handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        syncfs = getattr(ctypes.CDLL(None, use_errno=True), "syncfs", None)
        if syncfs is None:
            os.sync()
        elif syncfs(handle) != 0:
            code = ctypes.get_errno()
            raise OSError(code, os.strerror(code), path)
    finally:
        os.close(handle)


def _beside(path: str) -> str:
    return os.path.join(os.path.dirname(path), "." + os.path.basename(path) + ".new")
