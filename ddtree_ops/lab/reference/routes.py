"""SGLang's own routes: generation, state, health, tokenizer, metrics."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from . import log
from .engine import Engine
from .request import Request, Sampling


@dataclass(frozen=True, slots=True)
class Call:
    """One HTTP request: its path, its JSON body, and whether its client is gone."""

    path: str
    body: dict[str, Any]
    gone: Callable[[], bool]


@dataclass(frozen=True, slots=True)
class Reply:
    """One HTTP response: JSON, plain text, or server-sent events (each already one line of text)."""

    status: int = 200
    json: Any = None
    text: str | None = None
    events: Iterator[str] | None = None


Route = Callable[[Engine, Call], Reply]


def error(message: str, status: int = 400, kind: str = "BadRequestError") -> Reply:
    """An error in the form of SGLang's OpenAI routes."""
    body = {"object": "error", "message": message, "type": kind, "param": None, "code": status}
    return Reply(status, json=body)


def generate(engine: Engine, call: Call) -> Reply:
    """`/generate`: text or input_ids, one or a list, whole or streamed."""
    try:
        requests, single = _started(engine, call.body)
    except (ValueError, TypeError) as wrong:
        log.engine.error("[http_server] Error: %s", wrong)
        return Reply(400, json={"error": {"message": str(wrong)}})
    if call.body.get("stream"):
        return Reply(events=_stream(engine, requests, call, single))
    answers = [_answer(engine, engine.complete(request, call.gone)) for request in requests]
    return Reply(json=answers[0] if single else answers)


def _started(engine: Engine, body: dict[str, Any]) -> tuple[list[Request], bool]:
    if body.get("return_logprob"):
        raise ValueError("DFLASH speculative decoding does not support return_logprob yet.")
    text, ids = body.get("text"), body.get("input_ids")
    if (text is None) == (ids is None):
        raise ValueError("Either text, input_ids or input_embeds should be provided.")
    given: Any = text if ids is None else ids
    single = isinstance(given, str) or (ids is not None and not (ids and isinstance(ids[0], list)))
    prompts: list[Any] = [given] if single else given
    params = body.get("sampling_params") or {}
    each = params if isinstance(params, list) else [params] * len(prompts)
    samplings = [Sampling.read(one) for one in each]
    tokens = [engine.tokenizer.encode(p) if isinstance(p, str) else p for p in prompts]
    rid = body.get("rid") if single else None
    return [engine.start(t, s, rid=rid) for t, s in zip(tokens, samplings, strict=True)], single


def _answer(engine: Engine, request: Request, upto: int | None = None) -> dict[str, Any]:
    tokens = len(request.output) if upto is None else upto
    text = request.text(engine.tokenizer, tokens)
    return {"text": text, "output_ids": request.output[:tokens], "meta_info": engine.meta(request, tokens)}


def _stream(engine: Engine, requests: list[Request], call: Call, single: bool) -> Iterator[str]:
    for index, request in enumerate(requests):
        for tokens in engine.follow(request, call.gone):
            answer = _answer(engine, request, tokens)
            yield json.dumps(answer if single else answer | {"index": index})
    yield "[DONE]"


def health(engine: Engine, _call: Call) -> Reply:
    """200 when the scheduler still answers; it cannot see what it answers."""
    if engine.draining:
        log.engine.info("Health check request received during shutdown. Returning 503.")
    return Reply(200 if engine.ready and not engine.draining and engine.healthy() else 503, text="")


def model_info(engine: Engine, _call: Call) -> Reply:
    """What is loaded."""
    return Reply(
        json={
            "model_path": engine.args.model_path,
            "tokenizer_path": engine.args.tokenizer_path,
            "is_generation": True,
            "preferred_sampling_params": None,
            "weight_version": "default",
            "has_image_understanding": False,
            "has_audio_understanding": False,
            "model_type": "reference",
            "architectures": ["ReferenceForCausalLM"],
        }
    )


def server_info(engine: Engine, _call: Call) -> Reply:
    """The flags, and one internal state."""
    state = engine.scheduler.state()
    capacity = {"max_total_num_tokens": engine.runner.pool.size, "status": "ready"}
    info = {**engine.args.as_dict(), **capacity, "internal_states": [state], "version": engine.version}
    return Reply(json=info)


def deprecated(current: Route) -> Route:
    """An old name of a route, which says so in the log."""

    def route(engine: Engine, call: Call) -> Reply:
        log.engine.warning(
            "Endpoint '%s' is deprecated and will be removed in a future version. Please use '/%s' instead.",
            *(call.path, call.path.removeprefix("/get_")),
        )
        return current(engine, call)

    return route


def flush_cache(engine: Engine, _call: Call) -> Reply:
    """Empties the prefix cache; 400 while requests wait or run."""
    if engine.scheduler.flush():
        return Reply(
            text="Cache flushed.\nPlease check backend logs for more details. "
            "(When there are running or waiting requests, the operation will not be performed.)\n"
        )
    return Reply(400, text="Flush cache failed.\n")


def tokenize(engine: Engine, call: Call) -> Reply:
    """Token ids of a prompt or of each of a list; takes no messages, as in 0.5.11."""
    prompt = call.body.get("prompt")
    limit = engine.args.context_length
    if isinstance(prompt, str):
        tokens = engine.tokenizer.encode(prompt)
        return Reply(json={"tokens": tokens, "count": len(tokens), "max_model_len": limit})
    if isinstance(prompt, list) and all(isinstance(text, str) for text in prompt):
        lists = [engine.tokenizer.encode(text) for text in prompt]
        return Reply(json={"tokens": lists, "count": [len(ids) for ids in lists], "max_model_len": limit})
    return error("prompt: expected a string or a list of strings")


def detokenize(engine: Engine, call: Call) -> Reply:
    """Text of token ids, one list or several."""
    tokens, skip = call.body.get("tokens"), bool(call.body.get("skip_special_tokens", True))
    if not isinstance(tokens, list):
        return error(f"Invalid tokens type: {type(tokens)}. Expected List[int] or List[List[int]].")
    nested = bool(tokens) and isinstance(tokens[0], list)
    lists = tokens if nested else [tokens]
    size = engine.tokenizer.size
    if not all(type(i) is int and 0 <= i < size for ids in lists for i in ids):
        return error("Invalid input: 'tokens' must be a list of integers.")
    texts = [engine.tokenizer.decode(ids, skip_special=skip) for ids in lists]
    return Reply(json={"text": texts if nested else texts[0]})


def metrics(engine: Engine, _call: Call) -> Reply:
    """Prometheus text under SGLang's names; only with --enable-metrics."""
    if not engine.args.enable_metrics:
        return Reply(404, json={"detail": "Not Found"})
    scheduler, c = engine.scheduler, engine.scheduler.counters
    used, share = scheduler.usage()
    gauges = {
        "num_running_reqs": len(scheduler.running),
        "num_queue_reqs": len(scheduler.waiting),
        "gen_throughput": c.throughput,
        "token_usage": share,
        "num_used_tokens": used,
        "cache_hit_rate": c.cached_tokens / c.prompt_tokens if c.prompt_tokens else 0.0,
        "spec_accept_length": c.accept_length,
        "spec_accept_rate": c.accept_rate,
        "max_total_num_tokens": engine.runner.pool.size,
    }
    totals = {
        "prompt_tokens_total": c.prompt_tokens,
        "generation_tokens_total": c.generated_tokens,
        "cached_tokens_total": c.cached_tokens,
        "num_requests_total": c.requests,
    }
    label = f'{{model_name="{engine.args.served_model_name}"}}'
    lines = []
    for kind, values in (("gauge", gauges), ("counter", totals)):
        for name, value in values.items():
            lines += [f"# TYPE sglang:{name} {kind}", f"sglang:{name}{label} {float(value)}"]
    return Reply(text="\n".join(lines) + "\n")
