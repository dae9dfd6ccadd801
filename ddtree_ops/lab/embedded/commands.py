"""A service's Exec lines as commands that are ready to run."""

from __future__ import annotations

from pathlib import Path

from ddtree_ops.lab.embedded.process import Command
from ddtree_ops.lab.embedded.unitfile import UnitFile, assignments, environment_file, expand, split_words

_PREFIXES = "-@:+!"


def commands(file: UnitFile, key: str, inherited: dict[str, str]) -> list[Command]:
    """The commands of `ExecStart` or its like, with the environment and limits that the unit gives them."""
    environment = inherited | unit_environment(file)
    limits = tuple((line.key, line.value) for line in file.lines if line.key.startswith("Limit"))
    cwd = file.get("Service", "WorkingDirectory", "/").lstrip("-")
    found = []
    for value in file.all("Service", key):
        bare = value.lstrip(_PREFIXES)
        argv = tuple(expand(split_words(bare) or [], file.name, environment))
        if argv:
            ignore = "-" in value[: len(value) - len(bare)]
            command = Command(
                argv=argv, environment=environment, cwd=cwd, limits=limits, ignore_errors=ignore
            )
            found.append(command)
    return found


def unit_environment(file: UnitFile) -> dict[str, str]:
    """Environment=, and over it what the files of EnvironmentFile= hold."""
    environment: dict[str, str] = {}
    for value in file.all("Service", "Environment"):
        environment |= assignments(value, file.name)
    for value in file.all("Service", "EnvironmentFile"):
        path = Path(value.lstrip("-"))
        if path.is_file():
            environment |= environment_file(path.read_text())
    return environment


def environment_readable(file: UnitFile) -> bool:
    """Whether every EnvironmentFile= that is not optional is there."""
    paths = file.all("Service", "EnvironmentFile")
    return all(path.startswith("-") or Path(path).is_file() for path in paths)
