"""The OpenAI routes: models, chat and plain completions, whole or streamed."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

from .engine import Engine
from .request import Request, Sampling
from .routes import Call, Reply, error

COMPLETION_TOKENS = 16  # default of max_tokens in /v1/completions


def models(engine: Engine, _call: Call) -> Reply:
    """`/v1/models`."""
    return Reply(json={"object": "list", "data": [_card(engine)]})


def model(engine: Engine, call: Call) -> Reply:
    """`/v1/models/NAME`."""
    name = call.path.removeprefix("/v1/models/")
    if name == engine.args.served_model_name:
        return Reply(json=_card(engine))
    message = {"message": f"The model '{name}' does not exist", "type": "invalid_request_error"}
    return Reply(404, json={"error": {**message, "param": "model", "code": "model_not_found"}})


def _card(engine: Engine) -> dict[str, Any]:
    name = engine.args.served_model_name
    card = {"id": name, "object": "model", "created": int(time.time()), "owned_by": "sglang"}
    return {**card, "root": name, "parent": None, "max_model_len": engine.args.context_length}


def chat_completions(engine: Engine, call: Call) -> Reply:
    """`/v1/chat/completions`."""
    try:
        messages = [_message(message) for message in call.body["messages"]]
    except (KeyError, TypeError, ValueError):
        return error("messages: expected a list of objects with role and content")
    if not messages:
        return error("Messages cannot be empty.")
    limit = call.body.get("max_completion_tokens") or call.body.get("max_tokens")
    prompt = engine.tokenizer.encode(engine.tokenizer.chat(messages))
    return _respond(engine, call, prompt, limit, chat=True)


def _message(message: dict[str, Any]) -> tuple[str, str]:
    role, content = message["role"], message["content"]
    if isinstance(content, list):
        content = "".join(part["text"] for part in content if part.get("type") == "text")
    if not isinstance(role, str) or not isinstance(content, str):
        raise TypeError("role and content are strings")
    return role, content


def completions(engine: Engine, call: Call) -> Reply:
    """`/v1/completions`, for one prompt: text or token ids."""
    prompt = call.body.get("prompt")
    if isinstance(prompt, list) and len(prompt) == 1 and not isinstance(prompt[0], int):
        prompt = prompt[0]
    if not isinstance(prompt, (str, list)) or not prompt:
        return error("Prompt cannot be empty")
    ids = engine.tokenizer.encode(prompt) if isinstance(prompt, str) else prompt
    return _respond(engine, call, ids, call.body.get("max_tokens") or COMPLETION_TOKENS, chat=False)


def _respond(engine: Engine, call: Call, prompt: list[int], limit: int | None, *, chat: bool) -> Reply:
    params = {**call.body, "max_new_tokens": limit, "sampling_seed": call.body.get("seed")}
    try:
        request = engine.start(prompt, Sampling.read(params), bounded=limit is not None)
    except (ValueError, TypeError) as wrong:
        return error(str(wrong))
    if call.body.get("stream"):
        return Reply(events=_stream(engine, request, call, chat=chat))
    engine.complete(request, call.gone)
    text, finish = request.text(engine.tokenizer), request.finish or {}
    choice = {
        "index": 0,
        "logprobs": None,
        "finish_reason": finish["type"],
        "matched_stop": finish.get("matched"),
    }
    content = {"role": "assistant", "content": text, "reasoning_content": None, "tool_calls": None}
    choice |= {"message": content} if chat else {"text": text}
    kind = "chat.completion" if chat else "text_completion"
    return Reply(json={**_head(engine, request, kind), "choices": [choice], "usage": _usage(request)})


def _stream(engine: Engine, request: Request, call: Call, *, chat: bool) -> Iterator[str]:
    head = _head(engine, request, "chat.completion.chunk" if chat else "text_completion")

    def chunk(text: str | None, finish: dict[str, Any] | None = None, **delta: Any) -> str:
        content = {"delta": {**delta, "content": text}} if chat else {"text": text or ""}
        reason = {"finish_reason": (finish or {}).get("type"), "matched_stop": (finish or {}).get("matched")}
        return json.dumps(
            {**head, "choices": [{"index": 0, **content, "logprobs": None, **reason}], "usage": None}
        )

    if chat:
        yield chunk("", role="assistant")
    sent = ""
    for tokens in engine.follow(request, call.gone):
        text = request.text(engine.tokenizer, tokens)
        if len(text) > len(sent):
            yield chunk(text[len(sent) :])
            sent = text
    yield chunk(None, request.finish)
    if (call.body.get("stream_options") or {}).get("include_usage"):
        yield json.dumps({**head, "choices": [], "usage": _usage(request)})
    yield "[DONE]"


def _head(engine: Engine, request: Request, kind: str) -> dict[str, Any]:
    name = engine.args.served_model_name
    return {"id": request.rid, "object": kind, "created": int(time.time()), "model": name}


def _usage(request: Request) -> dict[str, Any]:
    prompt, completion = len(request.prompt), len(request.output)
    counts = {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": prompt + completion}
    return {**counts, "prompt_tokens_details": None, "reasoning_tokens": 0}
