"""A hand-written unit as a profile, losing nothing of it."""

from __future__ import annotations

from dataclasses import replace

from ddtree_ops.config.unit import UnitFile, parse_unit, split_words
from ddtree_ops.engine.flags import profile_from_argv
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.profile import Profile

# Settings that the template writes from a profile's fields; all others are carried as lines.
OWNED = {
    ("Unit", "Description"),
    ("Unit", "After"),
    ("Unit", "Wants"),
    ("Unit", "StartLimitIntervalSec"),
    ("Unit", "StartLimitBurst"),
    ("Service", "Type"),
    ("Service", "ExecStart"),
    ("Service", "User"),
    ("Service", "WorkingDirectory"),
    ("Service", "Environment"),
    ("Service", "EnvironmentFile"),
    ("Service", "KillMode"),
    ("Service", "TimeoutStartSec"),
    ("Service", "TimeoutStopSec"),
    ("Service", "Restart"),
    ("Service", "RestartSec"),
    ("Install", "WantedBy"),
}
NETWORK = "network-online.target"
UNITS_S = {"": 1.0, "s": 1.0, "sec": 1.0, "min": 60.0, "m": 60.0, "h": 3600.0, "hr": 3600.0}


def adopt(text: str, service: str, name: str) -> Profile:
    """The profile that a unit file stands for; raises Refused or UsageError when it is not an engine's."""
    unit = parse_unit(text)
    start = unit.value("Service", "ExecStart")
    if start is None:
        raise Refused(f"{service}.service", "got no ExecStart=, expected the engine's command line")
    argv = split_words(start.lstrip("@-:+!"))
    environment = tuple(
        _assignment(word) for line in unit.values("Service", "Environment") for word in split_words(line)
    )
    profile = profile_from_argv(argv, environment, name=name, service=service)
    return replace(
        profile,
        user=unit.value("Service", "User"),
        working_directory=unit.value("Service", "WorkingDirectory"),
        environment_file=unit.value("Service", "EnvironmentFile"),
        limits=_limits(unit),
        unit_lines=_unowned(unit),
        load_timeout_s=_seconds(unit, "TimeoutStartSec", profile.load_timeout_s),
        stop_timeout_s=_seconds(unit, "TimeoutStopSec", profile.stop_timeout_s),
    )


def carried(profile: Profile, found: Profile | None) -> Profile:
    """An inventory's profile with the lines of the unit that it replaces, which it has no key for."""
    return profile if found is None else replace(profile, unit_lines=found.unit_lines)


def _limits(unit: UnitFile) -> tuple[tuple[str, str], ...]:
    return tuple(
        (key, value)
        for section, key, value in unit.settings
        if section == "Service" and key.startswith("Limit")
    )


def _unowned(unit: UnitFile) -> tuple[tuple[str, str], ...]:
    lines = []
    for section, key, value in unit.settings:
        owned = (section, key) in OWNED or key.startswith("Limit")
        if not owned:
            lines.append((section, f"{key}={value}"))
        elif section == "Unit" and key in ("After", "Wants"):
            others = [word for word in value.split() if word not in (NETWORK, "network.target")]
            lines += [(section, f"{key}={' '.join(others)}")] if others else []
    return tuple(lines)


def _assignment(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals:
        raise UsageError("unit: Environment", f"got {word!r}, expected NAME=VALUE")
    return name, value


def _seconds(unit: UnitFile, key: str, default: int) -> int:
    value = unit.value("Service", key)
    if value is None or value == "infinity":
        return default
    total = 0.0
    for part in value.split():
        number = part.rstrip("abcdefghijklmnopqrstuvwxyz")
        try:
            total += float(number) * UNITS_S[part[len(number) :]]
        except (ValueError, KeyError):
            return default
    return max(1, round(total))
