"""One operator at a time: a folder that comes into being whole, with its owner in it."""

from __future__ import annotations

import os

from .base import Json, Place, Problem
from .clock import lease_for, lease_left, utc_now
from .files import exclusive, read_json, remove_tree, sync_folder, write_json


def read_lock(place: Place) -> Json | None:
    """The lock as facts show it; one of an earlier boot has expired."""
    owner = read_json(_owner_file(place.lock))
    if owner is None:
        return None
    return {
        "who": owner["who"],
        "run": owner["run"],
        "since": owner["since"],
        "expires_in_s": lease_left(owner["lease"]),
    }


def take_lock(place: Place, who: str, run: str, ttl_s: float, steal: bool) -> Json:
    """Takes or renews the lock; call it inside `exclusive`."""
    held = read_lock(place)
    mine = held is not None and held["run"] == run
    if held is not None and not mine and held["expires_in_s"] > 0 and not steal:
        raise held_by_another(held)
    since = held["since"] if held is not None and mine else utc_now()
    owner = {"who": who, "run": run, "since": since, "lease": lease_for(ttl_s)}
    if mine:
        write_json(_owner_file(place.lock), owner)
    else:
        _swap_lock(place, owner)
    taken = read_lock(place)
    assert taken is not None
    return taken


def held_by_another(held: Json) -> Problem:
    return Problem(
        "lock",
        f"held by {held['who']} since {held['since']} (run {held['run']}, "
        f"{held['expires_in_s']:.0f} s left unless renewed)",
        "wait for that run to end; if its operator is gone: ddtree-ops unlock",
        "refused",
    )


def _swap_lock(place: Place, owner: Json) -> None:
    """Builds the lock beside; the rename takes it, and would fail on a lock that has come since."""
    beside = place.lock + ".new"
    remove_tree(beside)
    os.mkdir(beside, 0o755)
    try:
        write_json(_owner_file(beside), owner)
        drop_lock(place)
        os.rename(beside, place.lock)
    except BaseException:
        remove_tree(beside)
        raise
    sync_folder(place.dir)


def drop_lock(place: Place) -> None:
    """Removes the lock: out of the way by one rename, then taken apart."""
    gone = place.lock + ".old"
    remove_tree(gone)
    if os.path.lexists(place.lock):
        os.rename(place.lock, gone)
        sync_folder(place.dir)
        remove_tree(gone)


def unlock(place: Place, run: str | None, force: bool) -> Json | None:
    """Gives up the run's lock, or anyone's by force; returns the lock that went."""
    with exclusive(place):
        held = read_lock(place)
        if held is None or not (force or held["run"] == run):
            return None
        drop_lock(place)
        return held


def _owner_file(folder: str) -> str:
    return os.path.join(folder, "owner.json")
