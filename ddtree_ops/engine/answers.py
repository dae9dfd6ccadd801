"""The bodies of an engine's answers, read into values; what does not fit is said in words."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NoReturn

from ddtree_ops.model.generation import Generation

Ids = tuple[int, ...]


class Unlike(ValueError):
    """A body that came with status 200 and is not the answer that was asked for."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    id: str
    context_length: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatReply:
    """One answer of the OpenAI route; reasoning that a parser took out is in `reasoning`."""

    text: str
    reasoning: str
    prompt_tokens: int
    completion_tokens: int
    finish: str


def sound(body: object) -> object:
    """The body itself, unless it is an error that came with status 200."""
    message = _error_in(body) if isinstance(body, dict) else ""
    return _unlike(f"got 200 with an error in it: {message}") if message else body


def mapping(body: object) -> dict[str, object]:
    return body if isinstance(body, dict) else _unlike(f"got {excerpt(repr(body))}, expected an object")


def models(body: object) -> tuple[ServedModel, ...]:
    cards = [card for card in _list(mapping(body).get("data")) if isinstance(card, dict)]
    return tuple(
        ServedModel(id=str(card.get("id")), context_length=card.get("max_model_len")) for card in cards
    )


def token_ids(body: object) -> Ids:
    return _ids(mapping(body).get("tokens"))


def detokenized(body: object) -> str:
    return str(mapping(body).get("text", ""))


def generation(body: object, seconds: float) -> Generation:
    """One answer of the native route. Raises Unlike for an aborted request, as nothing was answered then."""
    answer = mapping(sound(body))
    meta = mapping(answer.get("meta_info"))
    finish = meta.get("finish_reason")
    kind = finish.get("type") if isinstance(finish, dict) else finish
    if kind == "abort":
        _unlike(f"got an aborted request ({excerpt(str(mapping(finish).get('message', '')))})")
    ids = _ids(answer.get("output_ids", []))
    return Generation(
        text=str(answer.get("text", "")),
        output_ids=ids,
        prompt_tokens=_whole(meta.get("prompt_tokens")),
        completion_tokens=_whole(meta.get("completion_tokens"), len(ids)),
        cached_tokens=_whole(meta.get("cached_tokens")),
        verify_steps=_whole(meta.get("spec_verify_ct")) or None,
        finish=str(kind),
        seconds=seconds,
    )


def generations(body: object, count: int, seconds: float) -> tuple[Generation, ...]:
    answers = _list(body)
    if len(answers) != count:
        _unlike(f"got {len(answers)} answers, expected {count}")
    return tuple(generation(answer, seconds) for answer in answers)


def chat_reply(body: object) -> ChatReply:
    answer = mapping(body)
    choices = _list(answer.get("choices"))
    choice = mapping(choices[0] if choices else None)
    message = mapping(choice.get("message"))
    usage = mapping(answer.get("usage"))
    return ChatReply(
        text=str(message.get("content") or ""),
        reasoning=str(message.get("reasoning_content") or ""),
        prompt_tokens=_whole(usage.get("prompt_tokens")),
        completion_tokens=_whole(usage.get("completion_tokens")),
        finish=str(choice.get("finish_reason")),
    )


def excerpt(text: str, limit: int = 300) -> str:
    """The text on one line, cut where it grows too long for a message."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def _unlike(message: str) -> NoReturn:
    raise Unlike(message)


def _error_in(body: Mapping[str, object]) -> str:
    error = body.get("error")
    if isinstance(error, dict):
        return excerpt(str(error.get("message", error)))
    if body.get("object") == "error":
        return excerpt(str(body.get("message", body)))
    return excerpt(error) if isinstance(error, str) else ""


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else _unlike(f"got {excerpt(repr(value))}, expected a list")


def _ids(value: object) -> Ids:
    items = _list(value)
    ids = tuple(item for item in items if isinstance(item, int))
    return ids if len(ids) == len(items) else _unlike(f"got {excerpt(repr(value))}, expected token ids")


def _whole(value: object, default: int = 0) -> int:
    return int(value) if isinstance(value, int | float) else default
