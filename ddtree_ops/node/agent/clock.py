"""The node's own time: leases are told by the boot and the seconds since it, never by the date."""

from __future__ import annotations

import os
import time
from datetime import datetime, timezone

from .base import Json, node_root

BOOT_ID = "proc/sys/kernel/random/boot_id"


def boot_id() -> str:
    """Names this boot; a node in a folder may keep a boot of its own there."""
    for path in (os.path.join(node_root(), BOOT_ID), "/" + BOOT_ID):
        try:
            with open(path) as file:
                return file.read().strip()
        except OSError:
            continue
    return ""


def since_boot() -> float:
    """Seconds since the boot, time asleep included; no clock setting moves it."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


def utc_now() -> str:
    return datetime.now(timezone.utc).isoformat(timespec="seconds").replace("+00:00", "Z")


def lease_for(seconds: float) -> Json:
    """A lease that starts now."""
    return {"boot": boot_id(), "until": since_boot() + float(seconds)}


def lease_left(lease: Json) -> float:
    """Seconds left of a lease; one of another boot is over."""
    if lease.get("boot") != boot_id():
        return 0.0
    return float(lease.get("until", 0.0)) - since_boot()
