"""The dead-man switch: what is armed, and the way back that operator and guard share.

guard.json exists only while a timer looks at it: the units are started before it is written, and
it is removed before they are. Each step of the way back may be cut off and done again: the unit
file and the links are put back by rename, and `replace` remembers which process had to go.
"""

from __future__ import annotations

import contextlib
import os

from .base import Json, Place, Problem
from .clock import lease_for, lease_left
from .files import link_name, read_json, remove_file, replace_link, write_file, write_json
from .guardunits import look_once, start_guard, stop_guard
from .journal import append_entries, append_once, conclusion_of, entry_of
from .lock import held_by_another, read_lock
from .systemd import alive_invocation, reload_units, run_command, show_unit, systemctl, unit_lines
from .unitfile import disable_unit, put_unit, remember_unit

BY_GUARD = "guard"
EXCERPT_LINES = "400"


def read_guard(place: Place) -> Json | None:
    guard = read_json(place.guard)
    return guard if isinstance(guard, dict) else None


def shown_guard(guard: Json | None) -> Json | None:
    """The guard as facts show it."""
    if guard is None:
        return None
    shown = {key: guard[key] for key in ("run", "release", "previous", "state")}
    return {**shown, "lease_left_s": lease_left(guard["lease"])}


def arm_guard(place: Place, request: Json, source: str) -> Json:
    """Arms, or arms the same run's guard for another release; call it inside `exclusive`."""
    guard = read_guard(place)
    if guard is not None:
        _need_own(guard, request["run"])
        _need_armed(guard)
    before = guard["before"] if guard is not None else _remember(place)
    armed = {
        "run": request["run"],
        "by": request["by"],
        "release": request["release"],
        "previous": guard["previous"] if guard is not None else request["previous"],
        "state": "armed",
        "lease": lease_for(request["lease_s"]),
        "proof": request.get("proof"),
        "before": before,
    }
    try:
        start_guard(place, source, float(request["lease_s"]))
        write_json(place.guard, armed)
        look_once(place)
        if guard is None or guard["release"] != armed["release"]:
            detail = {"previous": armed["previous"], "lease_s": request["lease_s"]}
            append_entries(place, [entry_of(armed["run"], armed["by"], "armed", armed["release"], detail)])
    except BaseException:
        if guard is None:
            disarm(place)
        raise
    return armed


def _remember(place: Place) -> Json:
    """All that the way back needs."""
    unit = show_unit(place.unit_name)
    return {
        "unit": remember_unit(place),
        "current": link_name(place.current),
        "previous": link_name(place.previous),
        "invocation": alive_invocation(unit),
        "loaded": unit.get("LoadState") == "loaded",
    }


def need_guard(place: Place, run: str) -> Json:
    """This run's guard while it is armed and has not acted; Problem otherwise."""
    guard = read_guard(place)
    if guard is None:
        ended = conclusion_of(place, run)
        if ended is not None:
            raise Problem(
                "guard",
                f"{ended['by']} has ended this run: {ended['event']}",
                "see ddtree-ops history",
                "refused",
            )
        raise Problem("guard", "none is armed, expected this run's", "arm it first", "refused")
    _need_own(guard, run)
    _need_armed(guard)
    return guard


def _need_own(guard: Json, run: str) -> None:
    if guard["run"] != run:
        raise Problem(
            "guard",
            f"run {guard['run']} has armed it ({guard['state']}, {lease_left(guard['lease']):.0f} s of its "
            "lease left), expected none or this run's",
            "wait until it has put the node back: ddtree-ops status",
            "refused",
        )


def _need_armed(guard: Json) -> None:
    if guard["state"] != "armed":
        raise Problem(
            "guard",
            f"is putting release {guard['previous']} back, because {guard.get('why')}",
            "wait until it is done: ddtree-ops status",
            "refused",
        )


def need_no_other_guard(place: Place, run: str) -> None:
    guard = read_guard(place)
    if guard is not None:
        _need_own(guard, run)


def renew_lease(place: Place, run: str, lease_s: float) -> Json | None:
    """Renews the guard's lease; the lease over, but not yet acted upon, may still be renewed."""
    held = read_lock(place)
    if held is not None and held["run"] != run:
        raise held_by_another(held)
    guard = read_guard(place)
    if guard is None:
        ended = conclusion_of(place, run)
        if ended is not None and ended["by"] == BY_GUARD:
            need_guard(place, run)
        return None
    _need_own(guard, run)
    if guard.get("reverter") == BY_GUARD:
        _need_armed(guard)
    guard["lease"] = lease_for(lease_s)
    write_json(place.guard, guard)
    return guard


def begin_revert(place: Place, guard: Json, reverter: str, why: str) -> Json:
    """Files back as they were before; from here on any start of the service starts the previous one."""
    guard = {**guard, "state": "reverting", "reverter": reverter, "why": why}
    write_json(place.guard, guard)
    append_once(place, entry_of(guard["run"], reverter, "reverting", guard["release"], {"why": why}))
    before = guard["before"]
    if before["unit"]["kind"] == "absent" and not before["loaded"]:
        disable_unit(place.unit_name)
    put_unit(place, before["unit"])
    link_releases(place, before["current"], before["previous"])
    reload_units()
    if "replace" not in guard:
        invocation = alive_invocation(show_unit(place.unit_name))
        same = invocation != "" and invocation == before["invocation"]
        guard["replace"] = None if same else invocation
        write_json(place.guard, guard)
        _keep_excerpt(place, guard["release"])
    return guard


def restart_previous(place: Place, guard: Json) -> bool:
    """Restarts unless the previous release's process runs; stops what was not running before."""
    invocation = alive_invocation(show_unit(place.unit_name))
    if not guard["before"]["invocation"]:
        if invocation:
            systemctl("stop", "--no-block", place.unit_name)
        return False
    if guard["replace"] is None or invocation not in ("", guard["replace"]):
        return False
    run_command("systemctl", "reset-failed", place.unit_name)
    systemctl("restart", "--no-block", place.unit_name)
    return True


def restarted_since(place: Place, guard: Json) -> bool:
    """Whether the process that had to go has gone, and another has come."""
    if guard["replace"] is None:
        return True
    return alive_invocation(show_unit(place.unit_name)) not in ("", guard["replace"])


def disarm(place: Place, *, from_inside: bool = False) -> None:
    """guard.json first: a timer that outlives it finds nothing, and takes itself away."""
    remove_file(place.guard)
    stop_guard(place, from_inside=from_inside)


def _target(release: str | None) -> str | None:
    return None if release is None else os.path.join("releases", release)


def link_releases(place: Place, current: str | None, previous: str | None) -> None:
    replace_link(place.previous, _target(previous))
    replace_link(place.current, _target(current))


def _keep_excerpt(place: Place, release: str) -> None:
    """The failing release's last journal lines, beside it for study; never a reason to stop."""
    with contextlib.suppress(OSError, Problem):
        lines, _ = unit_lines(show_unit(place.unit_name), "--lines=" + EXCERPT_LINES)
        text = "".join(f"{line['time']:.3f} {line['message']}\n" for line in lines)
        if os.path.isdir(place.release(release)):
            write_file(os.path.join(place.release(release), "journal.log"), text.encode())
