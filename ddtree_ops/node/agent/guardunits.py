"""The guard's own units: a timer that looks at the lease, and a service that acts when it is over."""

from __future__ import annotations

import os
import sys

from .base import Place, node_root
from .files import remove_file, write_file
from .systemd import reload_units, run_command, systemctl
from .unitfile import disable_unit, sync_units

# ExecStartPre puts files back and is over before the engine's unit may start (Before=), at boot
# too; ExecStart restarts and proves, which must not hold the engine's own start job up.
SERVICE_TEXT = """\
# Written by ddtree-ops: puts {unit} back unless its operator confirms. Goes away by itself.
[Unit]
Description=ddtree-ops guard of {unit}
Before={unit}
StartLimitIntervalSec=0

[Service]
Type=simple
{environment}ExecStartPre={python} -I -S {agent} guard-settle {service}
ExecStart={python} -I -S {agent} guard {service}
TimeoutStartSec=300

[Install]
WantedBy=multi-user.target
"""
TIMER_TEXT = """\
# Written by ddtree-ops: looks whether the lease of {unit}'s operator is over. Goes away by itself.
[Unit]
Description=ddtree-ops guard of {unit}

[Timer]
OnActiveSec={first:.0f}s
OnUnitInactiveSec={again:.0f}s
AccuracySec=1s

[Install]
WantedBy=timers.target
"""


def guard_unit_texts(place: Place, lease_s: float) -> tuple[str, str]:
    """The service's and the timer's text."""
    service = SERVICE_TEXT.format(
        unit=place.unit_name,
        service=place.service,
        python=_word(sys.executable),
        agent=_word(place.agent),
        environment=_environment(),
    )
    timer = TIMER_TEXT.format(unit=place.unit_name, first=max(lease_s, 1.0), again=max(lease_s / 4, 1.0))
    return service, timer


def _environment() -> str:
    """Nodes in a folder tell the guard where, and keep their own systemctl first on PATH."""
    if node_root() == "/":
        return ""
    values = {"DDTREE_OPS_ROOT": node_root(), "PATH": os.environ.get("PATH", "")}
    return "".join(f"Environment={_word(f'{name}={value}')}\n" for name, value in values.items())


def _word(text: str) -> str:
    """One word of a unit file, quoted against spaces and specifiers."""
    text = text.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{text}"' if " " in text else text


def start_guard(place: Place, source: str, lease_s: float) -> None:
    """Writes the program and the units, and starts the timer; a timer that runs already starts anew."""
    service, timer = guard_unit_texts(place, lease_s)
    write_file(place.agent, source.encode(), 0o644)
    write_file(_unit_path(place, "service"), service.encode())
    write_file(_unit_path(place, "timer"), timer.encode())
    reload_units()
    systemctl("enable", place.guard_name + ".service", place.guard_name + ".timer")
    sync_units(place)
    systemctl("restart", place.guard_name + ".timer")


def look_once(place: Place) -> None:
    """Lets the guard look at its lease now, so that the timer counts from a look that has been.

    A reload of systemd's units in the moment in which OnActiveSec= is due takes that trigger away for
    good, and OnUnitInactiveSec= knows no moment before the first look: the timer would wait for ever.
    """
    run_command("systemctl", "start", "--no-block", place.guard_name + ".service")


def stop_guard(place: Place, *, from_inside: bool) -> None:
    """Takes the units away. From inside the guard's own service that one lives on; else a look ends here.

    A look under way would find its unit without a command to go on with, and stay behind as failed. Its
    end must not wait for a service that is being restarted, which the guard is ordered before.
    """
    names = (place.guard_name + ".service", place.guard_name + ".timer")
    if not any(os.path.lexists(_unit_path(place, kind)) for kind in ("service", "timer")):
        return
    now = "--job-mode=ignore-dependencies"
    run_command("systemctl", "stop", now, *(names[1:] if from_inside else names))
    disable_unit(*names)
    for kind in ("timer", "service"):
        remove_file(_unit_path(place, kind))
    reload_units()
    run_command("systemctl", "reset-failed", *names)


def _unit_path(place: Place, kind: str) -> str:
    return os.path.join(place.unit_dir, f"{place.guard_name}.{kind}")
