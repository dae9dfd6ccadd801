"""The guard's own work, run by its unit: look at the lease, put the files back, prove, conclude."""

from __future__ import annotations

import time

from .base import Json, Place
from .clock import boot_id, lease_left
from .files import exclusive
from .guard import BY_GUARD, begin_revert, disarm, read_guard, restart_previous, restarted_since
from .journal import append_once, conclusion_of, entry_of
from .proof import prove_engine
from .systemd import has_ended, show_unit
from .words import engine_key

RESTART_S = 600.0  # a stop may drain for long before the previous release can start


def settle(place: Place) -> Json | None:
    """Puts the files back when the lease is over or the node has been rebooted.

    Returns the guard while there is a revert to finish; None when all is well, or over.
    """
    with exclusive(place):
        guard = read_guard(place)
        if guard is None or _concluded(place, guard):
            return None
        if guard.get("reverter") != BY_GUARD and lease_left(guard["lease"]) > 0:
            return None
        same_boot = guard["lease"]["boot"] == boot_id()
        why = "the operator's lease ran out" if same_boot else "the node was rebooted"
        return begin_revert(place, guard, BY_GUARD, guard.get("why", why))


def watch(place: Place) -> None:
    """Finishes a revert that is due, and says in the journal how it ended; goes when all is over."""
    guard = settle(place)
    if guard is None:
        _go_when_over(place)
        return
    started = time.monotonic()
    with exclusive(place):
        restarted = restart_previous(place, guard)
    verdict = _verdict(place, guard)
    with exclusive(place):
        detail = {
            **verdict,
            "why": guard["why"],
            "failed_release": guard["release"],
            "restarted": restarted,
            "seconds": round(time.monotonic() - started, 1),
        }
        event = "reverted" if verdict["proven"] else "unproven"
        append_once(place, entry_of(guard["run"], BY_GUARD, event, guard["previous"], detail))
        disarm(place, from_inside=True)


def _go_when_over(place: Place) -> None:
    with exclusive(place):
        guard = read_guard(place)
        if guard is None or _concluded(place, guard):
            disarm(place, from_inside=True)


def _concluded(place: Place, guard: Json) -> bool:
    return conclusion_of(place, guard["run"]) is not None


def _verdict(place: Place, guard: Json) -> Json:
    """{proven, evidence} for the release that is back."""
    if not guard["before"]["invocation"]:
        return _stopped(place)
    deadline = time.monotonic() + RESTART_S
    while not restarted_since(place, guard):
        if time.monotonic() > deadline or _failed(place):
            return {"proven": False, "evidence": _failed(place) or "the restart did not happen"}
        time.sleep(0.5)
    if not guard.get("proof"):
        return {"proven": False, "evidence": "it was restarted; no proof had been asked for"}
    unit = place.unit_name
    return prove_engine(guard["proof"], lambda: _failed(place), lambda: engine_key(show_unit(unit)))


def _stopped(place: Place) -> Json:
    deadline = time.monotonic() + RESTART_S
    while show_unit(place.unit_name).get("ActiveState") not in ("inactive", "failed", None):
        if time.monotonic() > deadline:
            return {"proven": False, "evidence": "the service does not stop; it was not running before"}
        time.sleep(0.5)
    return {"proven": True, "evidence": "the service was not running before, and does not run now"}


def _failed(place: Place) -> str:
    """Why systemd has given up on the service; "" while it has not."""
    unit = show_unit(place.unit_name)
    failed = unit.get("ActiveState") == "failed" and has_ended(unit)
    return f"{place.unit_name} has failed ({unit.get('Result')})" if failed else ""
