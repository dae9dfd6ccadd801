"""A power cut, a kill or a full disk before any one system call: never between two releases."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from .conftest import NEW, OLD, SERVICE, Folder, changes_anything, in_child, manifest

RUN = {"run": "r1"}
STEPS: dict[str, dict[str, object]] = {
    "lock": {**RUN, "who": "ann", "ttl_s": 60},
    "found": {"manifest": manifest("0")},
    "arm": {**RUN, "by": "ann", "release": "1", "previous": "0", "lease_s": 0, "proof": None},
    "stage": {
        "manifest": manifest("1"),
        "unit": NEW,
        "base": None,
        "files": [{"path": "sglang/a.py", "text": "new"}],
    },
    "install": {**RUN, "release": "1"},
    "restart": RUN,
    "conclude": {**RUN, "by": "ann", "event": "confirmed", "release": "1"},
}
BEFORE_CONFIRM = [step for step in STEPS if step != "conclude"]


def deploy(folder: Folder, steps: list[str]) -> None:
    for step in steps:
        folder.ok(step, **STEPS[step])


def die() -> None:
    os._exit(137)


def lease_over(folder: Folder) -> None:
    """The lease of 0 s is over at once; the guard's unit runs only while its timer does."""
    if folder.timer_on():
        folder.watch()


def reboot(folder: Folder) -> None:
    folder.boot()


@pytest.fixture
def fresh(folder: Folder, in_memory: Path) -> Callable[[], None]:
    """Puts the folder back to how it was when the test asked for this."""
    kept = in_memory / "kept"

    def keep() -> None:
        if kept.exists():
            for path in folder.root.iterdir():
                shutil.rmtree(path)
            shutil.copytree(kept, folder.root, symlinks=True, dirs_exist_ok=True)
        else:
            shutil.copytree(folder.root, kept, symlinks=True)

    return keep


def assert_whole(folder: Folder) -> str:
    """The node is wholly in the old or wholly in the new release, and says which."""
    assert not folder.timer_on()
    assert not (folder.state / "guard.json").exists()
    events = [event for _, event, _ in folder.events()]
    confirmed = "confirmed" in events
    current = folder.state / "current"
    assert folder.unit.read_text() == (NEW if confirmed else OLD)
    assert folder.running == (NEW if confirmed else OLD)
    assert (str(current.readlink()) if current.is_symlink() else None) == (
        "releases/1" if confirmed else None
    )
    for release in (folder.state / "releases").glob("[0-9]*"):
        assert (release / "release.json").exists()
        assert (release / f"{SERVICE}.service").exists()
    return "new" if confirmed else "old"


@pytest.mark.parametrize("after", [lease_over, reboot])
def test_an_operator_who_dies_before_any_system_call_leaves_one_whole_release(
    folder: Folder, fresh: Callable[[], None], after: Callable[[Folder], None]
) -> None:
    folder.found()
    fresh()
    ends, at = [], 1
    while in_child(partial(deploy, folder, list(STEPS)), at, die):
        after(folder)
        ends.append(assert_whole(folder))
        fresh()
        at += 1
    assert ends == sorted(ends, reverse=True)  # old until the journal says confirmed, new from there on
    assert {"old", "new"} == set(ends)
    assert at > 40


def test_the_next_run_goes_through_whatever_a_dead_one_left(
    folder: Folder, fresh: Callable[[], None]
) -> None:
    folder.found()
    fresh()
    at = 1
    while in_child(partial(deploy, folder, BEFORE_CONFIRM), at, die):
        lease_over(folder)
        for step, request in STEPS.items():
            folder.ok(step, **{**request, "run": "r2", "steal": True})
        assert assert_whole(folder) == "new"
        assert folder.guard_files() == []
        fresh()
        at += 3


@pytest.mark.parametrize("after", [lease_over, reboot])
def test_a_guard_that_dies_before_any_system_call_finishes_when_it_runs_again(
    folder: Folder, fresh: Callable[[], None], after: Callable[[Folder], None]
) -> None:
    folder.found()
    deploy(folder, BEFORE_CONFIRM)
    assert folder.running == NEW
    fresh()
    at = 1
    while in_child(folder.watch, at, die):
        after(folder)
        assert assert_whole(folder) == "old"
        assert [event for _, event, _ in folder.events()].count("unproven") == 1
        fresh()
        at += 1
    assert at > 15


def test_an_operator_who_dies_while_putting_back_leaves_the_rest_to_the_guard(
    folder: Folder, fresh: Callable[[], None]
) -> None:
    def put_back() -> None:
        folder.ok("revert", **RUN, by="ann", why="smoke failed")
        folder.ok("conclude", **RUN, by="ann", event="reverted", release="0")

    folder.found()
    deploy(folder, BEFORE_CONFIRM)
    fresh()
    at = 1
    while in_child(put_back, at, die):
        lease_over(folder)
        assert assert_whole(folder) == "old"
        fresh()
        at += 1
    assert at > 15


def picture(folder: Folder) -> dict[str, str]:
    """All that counts of the node's files."""
    kept = {}
    for top in (folder.state, folder.unit.parent):
        for path in sorted(top.rglob("*")):
            name = str(path.relative_to(folder.root))
            if path.is_symlink():
                kept[name] = str(path.readlink())
            elif path.is_file() and path.name not in (".mutex", "agent.py", "owner.json"):
                kept[name] = path.read_text()
    return kept


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EROFS])
@pytest.mark.parametrize("step", list(STEPS))
def test_a_write_that_fails_leaves_the_old_state_and_says_why(
    folder: Folder, fresh: Callable[[], None], tmp_path_factory: pytest.TempPathFactory, step: str, code: int
) -> None:
    answer_file = tmp_path_factory.mktemp("answer") / "error"
    folder.found()
    deploy(folder, list(STEPS)[: list(STEPS).index(step)])
    before = picture(folder)
    fresh()

    def refuse() -> None:
        raise OSError(code, os.strerror(code), "a file")

    def ask() -> None:
        reply = folder.ask(step, **STEPS[step])
        os.write(handle, f"{reply.get('error', {}).get('message', '')}\n".encode())

    handle = os.open(answer_file, os.O_WRONLY | os.O_CREAT)
    at = 1
    while in_child(ask, at, refuse):
        message = answer_file.read_text().splitlines()[at - 1]
        if message:
            assert any(words in message for words in ("no space left", "read-only", "not found")), message
        if message and step not in ("conclude", "restart"):
            assert picture(folder) == before, f"{step}: before change {at}: {message}"
        fresh()
        at += 1
    os.close(handle)
    assert at > 1


def test_the_hook_sees_what_changes_files() -> None:
    assert changes_anything("open", ("x", None, os.O_WRONLY | os.O_CREAT))
    assert not changes_anything("open", ("x", None, os.O_RDONLY))
    assert changes_anything("os.rename", ())
    assert not changes_anything("os.listdir", (Path(),))
