"""SGLang's streaming routes: what to send, and what one event of the answer says."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from enum import StrEnum

COUNT = re.compile(rb'"completion_tokens": ?(\d+)')  # a quote inside text is escaped: cannot match


class Route(StrEnum):
    NATIVE = "/generate"
    COMPLETIONS = "/v1/completions"
    CHAT = "/v1/chat/completions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompt:
    """One request of a workload; `input_ids`, where given, go to the native route instead of the text."""

    id: str
    text: str
    max_tokens: int = 256
    input_ids: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the load goes; plain HTTP, since engines are reached by loopback or a tunnel."""

    host: str
    port: int
    route: Route = Route.NATIVE
    model: str = "default"
    temperature: float = 0.0
    ignore_eos: bool = False  # on: every answer is max_tokens long, at the price of text past its end
    api_key: str = field(default="", repr=False)


@dataclass(slots=True)
class Reading:
    """One event, read: the tokens so far (None: not said) and what else it carried."""

    tokens: int | None = None
    text: str | None = None
    reasoning: bool = False
    finish: str = ""
    error: str = ""
    info: dict[str, object] = field(default_factory=dict)


def body(target: Target, prompt: Prompt) -> bytes:
    """The JSON body of one streaming request."""
    if target.route is Route.NATIVE:
        content: dict[str, object] = (
            {"text": prompt.text} if prompt.input_ids is None else {"input_ids": list(prompt.input_ids)}
        )
        sampling = {
            "temperature": target.temperature,
            "max_new_tokens": prompt.max_tokens,
            "ignore_eos": target.ignore_eos,
        }
        return json.dumps({**content, "sampling_params": sampling, "stream": True}).encode()
    content = (
        {"messages": [{"role": "user", "content": prompt.text}]}
        if target.route is Route.CHAT
        else {"prompt": prompt.text}
    )
    shared = {
        "model": target.model,
        "temperature": target.temperature,
        "max_tokens": prompt.max_tokens,
        "ignore_eos": target.ignore_eos,
        "stream": True,
        "stream_options": {"include_usage": True, "continuous_usage_stats": True},
    }
    return json.dumps({**content, **shared}).encode()


def tokens_so_far(piece: bytes) -> int:
    """The last completion count in a raw piece of a stream; 0 when it has none. For live views."""
    at = piece.rfind(b'"completion_tokens":')
    match = COUNT.match(piece, at) if at >= 0 else None
    return int(match[1]) if match else 0


def read_event(route: Route, event: bytes) -> Reading:
    """One event's data as a Reading; what is not JSON becomes an error."""
    try:
        data = json.loads(event)
    except ValueError:
        return Reading(error=f"not JSON: {event[:80].decode('utf-8', 'replace')}")
    if not isinstance(data, dict):
        return Reading(error=f"not an object: {event[:80].decode('utf-8', 'replace')}")
    if error := error_of(data):
        return Reading(error=error)
    return _native(data) if route is Route.NATIVE else _openai(data)


def error_of(data: dict[str, object]) -> str:
    """The message of an error object in any of the forms that SGLang's routes use; "" for none."""
    error = data.get("error")
    if isinstance(error, dict):
        return str(error.get("message") or error)
    if error:
        return str(error)
    if data.get("object") == "error":
        return str(data.get("message") or data)
    return ""


def _native(data: dict[str, object]) -> Reading:
    meta = data.get("meta_info")
    info: dict[str, object] = meta if isinstance(meta, dict) else {}
    finish, error = info.get("finish_reason"), ""
    if isinstance(finish, dict):
        if finish.get("type") == "abort":
            error = f"aborted: {finish.get('message') or 'no reason given'}"
        finish = finish.get("type")
    text = data.get("text")
    return Reading(
        tokens=count(info, "completion_tokens"),
        text=text if isinstance(text, str) else None,
        finish=str(finish or ""),
        error=error,
        info=info,
    )


def _openai(data: dict[str, object]) -> Reading:
    usage = data.get("usage")
    info: dict[str, object] = dict(usage) if isinstance(usage, dict) else {}
    for name in ("meta_info", "sglext"):
        extra = data.get(name)
        info |= extra if isinstance(extra, dict) else {}
    reading = Reading(tokens=count(info, "completion_tokens"), info=info)
    choices = data.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict):
        return reading
    delta = choice.get("delta")
    part: dict[str, object] = delta if isinstance(delta, dict) else choice
    content, reasoning = part.get("content") or part.get("text"), part.get("reasoning_content")
    reading.text = str(content or reasoning) if content or reasoning else None
    reading.reasoning = bool(reasoning) and not content
    reading.finish = str(choice.get("finish_reason") or "")
    return reading


def count(info: dict[str, object], *path: str) -> int | None:
    """A whole number in nested objects, or None."""
    value: object = info
    for name in path:
        value = value.get(name) if isinstance(value, dict) else None
    return value if isinstance(value, int) and not isinstance(value, bool) else None
