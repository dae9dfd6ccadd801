"""The verbs that change a service; each may be repeated, and each is whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile
import time

from .base import Json, Place, Problem
from .files import exclusive, link_name
from .guard import (
    arm_guard,
    begin_revert,
    disarm,
    link_releases,
    need_guard,
    need_no_other_guard,
    read_guard,
    renew_lease,
    restart_previous,
    shown_guard,
)
from .guardunits import look_once
from .journal import append_entries, append_once, conclusion_of, entry_of, read_entries
from .lock import held_by_another, read_lock, take_lock, unlock
from .ports import listeners_of
from .releases import keep_found, list_releases, read_manifest, stage_release
from .systemd import alive_invocation, reload_units, run_command, show_unit, systemctl, unit_lines
from .unitfile import effective_unit, enable_unit, put_unit, remember_unit, sync_units, unit_of_release
from .units import unit_facts
from .words import engine_key

MOST_LINES = 5000  # of the journal, in one look


def verb_lock(place: Place, request: Json) -> Json:
    with exclusive(place):
        need_no_other_guard(place, request["run"])
        return take_lock(place, request["who"], request["run"], request["ttl_s"], bool(request.get("steal")))


def verb_unlock(place: Place, request: Json) -> Json | None:
    gone = unlock(place, request.get("run"), bool(request.get("force")))
    if request.get("force") and read_guard(place) is not None:
        # a guard whose timer was lost would wait for the next boot; with its lease left, it does nothing
        look_once(place)
    return gone


def verb_found(place: Place, request: Json) -> bool:
    return keep_found(place, request["manifest"])


def verb_stage(place: Place, request: Json) -> bool:
    return stage_release(place, request["manifest"], request["unit"], request.get("base"), request["files"])


def verb_verify_unit(place: Place, request: Json) -> list[str]:
    """systemd-analyze's lines about this unit; it exits 0 on unknown keys, so its words count."""
    if request.get("unit") is None:
        return _verify(place, place.release_unit(request["release"]))
    with tempfile.TemporaryDirectory(prefix="ddtree-ops-") as folder:
        path = os.path.join(folder, place.unit_name)
        with open(path, "w", encoding="utf-8") as file:
            file.write(request["unit"])
        return _verify(place, path)


def _verify(place: Place, path: str) -> list[str]:
    if not os.path.exists(path):
        return []
    done = run_command("systemd-analyze", "verify", path)
    said = [line.strip() for line in done.stderr.splitlines() if place.unit_name in line]
    if done.returncode != 0 and not said:
        said = [done.stderr.strip() or f"systemd-analyze verify: exit {done.returncode}"]
    return said


def verb_arm(place: Place, request: Json) -> Json | None:
    with exclusive(place):
        held = read_lock(place)
        if held is not None and held["run"] != request["run"]:
            raise held_by_another(held)
        return shown_guard(arm_guard(place, request, request["source"]))


def verb_renew(place: Place, request: Json) -> Json | None:
    with exclusive(place):
        guard = renew_lease(place, request["run"], float(request["lease_s"]))
        held = read_lock(place)
        if held is not None:
            take_lock(place, held["who"], held["run"], request["lease_s"], False)
        return shown_guard(guard)


def verb_install(place: Place, request: Json) -> bool:
    """Unit and links; a crash in between is the armed guard's to undo."""
    release = request["release"]
    with exclusive(place):
        guard = need_guard(place, request["run"])
        if guard["release"] != release:
            raise Problem(
                "guard", f"armed for release {guard['release']}, expected {release}", "arm it for that"
            )
        if read_manifest(place, release) is None:
            raise Problem(f"release {release}", "is not staged", "stage it first", "refused")
        wanted, before = unit_of_release(place, release), remember_unit(place)
        current, previous = link_name(place.current), link_name(place.previous)
        try:
            changed = _install(place, release, wanted, guard["before"])
        except (OSError, Problem):
            with contextlib.suppress(OSError, Problem):
                put_unit(place, before)
                link_releases(place, current, previous)
                reload_units()
            raise
        return changed


def _install(place: Place, release: str, wanted: Json, before: Json) -> bool:
    changed = put_unit(place, wanted)
    if link_name(place.current) != release:
        changed = True
        link_releases(place, release, before["current"])
    reload_units()
    if before["unit"]["kind"] == "absent" and not before["loaded"]:
        enable_unit(place.unit_name)
        sync_units(place)
    return changed


def verb_restart(place: Place, request: Json) -> Json:
    with exclusive(place):
        need_guard(place, request["run"])
        unit = show_unit(place.unit_name)
        before = alive_invocation(unit)
        if unit.get("LoadState") == "not-found":
            if before:
                systemctl("stop", "--no-block", place.unit_name)
            return {"invocation_before": before, "absent": True}
        run_command("systemctl", "reset-failed", place.unit_name)
        systemctl("restart", "--no-block", place.unit_name)
        return {"invocation_before": before, "absent": False}


def verb_observe(place: Place, request: Json) -> Json:
    """The unit and its new journal lines; a cursor that begins with @ is a time."""
    cursor = request.get("cursor") or ""
    unit = show_unit(place.unit_name)
    if not cursor:
        lines, after = unit_lines(unit, f"--lines={int(request.get('tail') or 0) or 1}")
        lines = lines if request.get("tail") else []
    else:
        since = "--since=" + cursor if cursor.startswith("@") else "--after-cursor=" + cursor
        lines, after = unit_lines(unit, since)
    return {
        "unit": unit_facts(place.unit_name, unit),
        "lines": lines[-MOST_LINES:],
        "skipped": max(len(lines) - MOST_LINES, 0),
        "cursor": after or cursor or f"@{int(time.time())}",
        "listeners": listeners_of(request.get("port")) if request.get("port") else [],
    }


def verb_api_key(place: Place, _request: Json) -> str:
    """The key that the engine wants of its clients; "" where it wants none."""
    return engine_key(show_unit(place.unit_name))


def verb_conclude(place: Place, request: Json) -> None:
    """The journal first, then the guard: one that wakes in between reads the journal and goes."""
    run, event, release = request["run"], request["event"], request["release"]
    with exclusive(place):
        ended = conclusion_of(place, run)
        if ended is None:
            _need_for(event, place, run, release)
            append_once(place, entry_of(run, request["by"], event, release, request.get("detail")))
        elif (ended["event"], ended["release"]) != (event, release):
            raise Problem(
                "guard",
                f"{ended['by']} has ended this run: {ended['event']}",
                "see ddtree-ops history",
                "refused",
            )
        guard = read_guard(place)
        if guard is not None and guard["run"] == run:
            disarm(place)


def _need_for(event: str, place: Place, run: str, release: str) -> None:
    """What must hold for a run to end so: an armed guard to confirm, our own revert to report one."""
    if event == "confirmed":
        guard = need_guard(place, run)
        if guard["release"] != release:
            raise Problem("guard", f"armed for release {guard['release']}, expected {release}", "", "refused")
        return
    guard_left = read_guard(place)
    if guard_left is not None and (guard_left["run"] != run or guard_left.get("reverter") == "guard"):
        need_guard(place, run)


def verb_revert(place: Place, request: Json) -> Json:
    with exclusive(place):
        guard = read_guard(place)
        ended = conclusion_of(place, request["run"])
        if guard is None or ended is not None:
            return _reverted_before(place, request["run"], ended)
        if guard["run"] != request["run"] or guard.get("reverter") == "guard":
            need_guard(place, request["run"])
        guard = begin_revert(place, guard, request["by"], request["why"])
        restarted = restart_previous(place, guard)
        return {
            "release": guard["previous"],
            "restarted": restarted,
            "invocation_before": guard["replace"] or "",
            "by_guard": False,
        }


def _reverted_before(place: Place, run: str, ended: Json | None) -> Json:
    if ended is None or ended["event"] == "confirmed":
        need_guard(place, run)
    assert ended is not None
    detail = ended["detail"]
    return {
        "release": ended["release"],
        "restarted": bool(detail.get("restarted")),
        "by_guard": ended["by"] == "guard",
        "event": ended["event"],
        "evidence": str(detail.get("evidence") or ""),
    }


def verb_note(place: Place, request: Json) -> None:
    with exclusive(place):
        append_entries(place, request["entries"])


def verb_history(place: Place, _: Json) -> Json:
    found = [read_manifest(place, release) for release in list_releases(place)]
    return {"entries": read_entries(place), "releases": found}


def verb_unit_of(place: Place, request: Json) -> str | None:
    release = request.get("release")
    if release is None:
        unit = effective_unit(place)
        return None if unit is None else unit.decode("utf-8", "replace")
    if read_manifest(place, release) is None:
        raise Problem(f"release {release}", "is not on this node", "ddtree-ops history", "refused")
    try:
        with open(place.release_unit(release), "rb") as file:
            return file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return None
