"""The service's unit file as a thing that can be remembered and put back exactly."""

from __future__ import annotations

import base64
import contextlib
import os
import stat

from .base import Json, Place
from .files import read_json, remove_file, replace_link, sync_folder, write_file
from .systemd import run_command, show_unit

ORIGIN = "origin.json"  # beside the unit in release 0: what kind of file it was


def remember_unit(place: Place) -> Json:
    """The unit file in place: its bytes and mode, a link's target, or that there is none."""
    try:
        found = os.lstat(place.unit)
    except FileNotFoundError:
        return {"kind": "absent"}
    if stat.S_ISLNK(found.st_mode):
        return {"kind": "link", "target": os.readlink(place.unit)}
    with open(place.unit, "rb") as file:
        data = file.read()
    mode = stat.S_IMODE(found.st_mode)
    return {"kind": "file", "data": base64.b64encode(data).decode(), "mode": mode}


def put_unit(place: Place, wanted: Json) -> bool:
    """Makes the unit file what `remember_unit` saw; False when it is that already."""
    if remember_unit(place) == wanted:
        return False
    os.makedirs(place.unit_dir, exist_ok=True)
    if wanted["kind"] == "absent":
        remove_file(place.unit)
    elif wanted["kind"] == "link":
        replace_link(place.unit, wanted["target"])
    else:
        write_file(place.unit, base64.b64decode(wanted["data"]), wanted["mode"])
    return True


def unit_of_release(place: Place, release: str) -> Json:
    """The unit file that a staged release wants in place."""
    origin = read_json(os.path.join(place.release(release), ORIGIN))
    if origin is not None and origin["kind"] != "file":
        return origin  # type: ignore[no-any-return]
    with open(place.release_unit(release), "rb") as file:
        data = file.read()
    mode = origin["mode"] if origin else 0o644
    return {"kind": "file", "data": base64.b64encode(data).decode(), "mode": mode}


def effective_unit(place: Place) -> bytes | None:
    """The unit file that systemd reads, wherever it lies; None when there is no unit."""
    path = place.unit if os.path.exists(place.unit) else show_unit(place.unit_name).get("FragmentPath")
    if not path:
        return None
    with open(path, "rb") as file:
        return file.read()


def enable_unit(*names: str) -> None:
    """Starts units at boot; on disk when this returns."""
    run_command("systemctl", "enable", *names)


def disable_unit(*names: str) -> None:
    run_command("systemctl", "disable", *names)


def sync_units(place: Place) -> None:
    """The unit folder and its folders of links, on disk."""
    with contextlib.suppress(FileNotFoundError):
        sync_folder(place.unit_dir)
        for name in os.listdir(place.unit_dir):
            if name.endswith(".wants"):
                sync_folder(os.path.join(place.unit_dir, name))
