"""Playbooks: the order of steps, with a deadline and an undo for each."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter
from ruamel.yaml.comments import CommentedMap

from ddtree_ops.config import yamlfile
from ddtree_ops.model.plan import Playbook, PlaybookStep

Argv = Annotated[list[Annotated[str, Field(min_length=1)]], Field(min_length=1)]


class StepKeys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    step: str | None = None
    command: Argv | None = None
    on: Literal["node", "operator"] = "node"
    timeout_s: Annotated[float, Field(gt=0, strict=False)] | None = None
    undo: list[str] | None = None


class PlaybookKeys(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    name: Annotated[str, Field(pattern=r"^[a-z][a-z0-9-]*$")]
    summary: str = ""
    steps: Annotated[list[Any], Field(min_length=1)]


STEP = TypeAdapter(StepKeys)
PLAYBOOK = TypeAdapter(PlaybookKeys)


def parse_playbook(text: str, file: str, known: tuple[str, ...]) -> Playbook:
    """Reads a playbook whose steps are among `known`, or commands; UsageError with file:line:key."""
    document = yamlfile.parse(text, file)
    keys = yamlfile.validate(PLAYBOOK, document, document, file, ())
    steps = tuple(_step(document, index, file, known) for index in range(len(keys.steps)))
    return Playbook(name=keys.name, summary=keys.summary, steps=steps)


def _step(document: CommentedMap, index: int, file: str, known: tuple[str, ...]) -> PlaybookStep:
    at = ("steps", index)
    node = document["steps"][index]
    keys = yamlfile.validate(STEP, document, {"step": node} if isinstance(node, str) else node, file, at)
    if (keys.step is None) == (keys.command is None):
        raise yamlfile.complaint(document, file, at, "got neither or both, expected `step` or `command`")
    if keys.step is not None and keys.step not in known:
        raise yamlfile.complaint(
            document, file, (*at, "step"), f"got {keys.step!r}, expected one of: {', '.join(known)}"
        )
    return PlaybookStep(
        step=keys.step or "command",
        timeout_s=keys.timeout_s,
        command=tuple(keys.command or ()),
        on=keys.on,
        undo=None if keys.undo is None else tuple(keys.undo),
    )
