"""An engine's HTTP interface, as SGLang 0.5.9 and later speak it, with every failure mapped once.

Calls block and may be made from several threads at once. Every call has a deadline: it bounds the wait for
the answer's beginning, and again its whole body.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import TracebackType
from typing import TypeVar

import httpx

from ddtree_ops.engine import answers, counters
from ddtree_ops.engine.answers import Ids, excerpt
from ddtree_ops.model.errors import Failed
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.ports import Clock

Value = TypeVar("Value")


class EngineError(Failed):
    """The engine did not give what was asked for."""


class EngineDown(EngineError):
    """Nothing listens, or the connection broke."""


class EngineTimeout(EngineError):
    """No answer within the call's deadline."""


class EngineRefusal(EngineError):
    """It answered, but with an error, or with something that is no such answer."""

    def __init__(self, what: str, message: str, *, status: int, hint: str = "", node: str = "") -> None:
        super().__init__(what, message, hint=hint, node=node)
        self.status = status  # 200 when the error hid in the body


@dataclass(frozen=True, slots=True, kw_only=True)
class Timeouts:
    """Seconds a call may take."""

    connect: float = 5.0
    control: float = 30.0  # health answers within 20 s by itself; server_info waits for the scheduler
    generate: float = 300.0
    flush: float = 30.0  # how long a busy engine may refuse to flush
    flush_retry: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """How tokens are drawn; temperature 0 is greedy."""

    max_tokens: int
    temperature: float = 0.0
    seed: int | None = None
    ignore_eos: bool = False

    def native(self) -> dict[str, object]:
        """`sampling_params` of the native route."""
        words: dict[str, object] = {"max_new_tokens": self.max_tokens, "temperature": self.temperature}
        if self.seed is not None:
            words["sampling_seed"] = self.seed
        if self.ignore_eos:
            words["ignore_eos"] = True
        return words


@dataclass(slots=True, kw_only=True)
class EngineClient:
    """Speaks to one engine at `base_url`; errors name `node`. As a context manager it closes itself."""

    base_url: str
    clock: Clock
    timeouts: Timeouts = field(default_factory=Timeouts)
    node: str = ""
    api_key: str | None = field(default=None, repr=False)
    _http: httpx.Client = field(init=False, repr=False)

    def __post_init__(self) -> None:
        headers = {"Authorization": f"Bearer {self.api_key}"} if self.api_key else {}
        # trust_env off: a laptop's proxy settings must not catch traffic for a tunnel on loopback.
        self._http = httpx.Client(base_url=self.base_url, headers=headers, trust_env=False)

    def __enter__(self) -> EngineClient:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def health(self) -> bool:
        """Whether the scheduler gave any sign of life within 20 s; says nothing about the output."""
        status, _ = self._call("GET", "/health", None, self.timeouts.control, accept=(200, 503))
        return status == 200

    def models(self) -> tuple[answers.ServedModel, ...]:
        return self._ask("GET", "/v1/models", None, self.timeouts.control, answers.models)

    def server_info(self) -> counters.ServerInfo:
        """The engine's arguments and counters; engines that only know the older name are asked by it."""
        for path in ("/server_info", "/get_server_info"):
            status, text = self._call("GET", path, None, self.timeouts.control, accept=(200, 404))
            if status == 200:
                return self._read(path, text, lambda body: counters.server_info(answers.mapping(body)))
        raise EngineRefusal(
            "/server_info", "got 404, expected the engine's state", status=404, node=self.node
        )

    def metrics(self) -> tuple[counters.Sample, ...]:
        """Prometheus samples; EngineRefusal with status 404 unless the engine runs with --enable-metrics."""
        _, text = self._call("GET", "/metrics", None, self.timeouts.control, accept=(200,), follow=True)
        return counters.metrics(text)

    def tokenize(self, text: str, *, special: bool = False) -> Ids:
        """The engine's own token ids of a text; `special` adds what its tokenizer puts around one (BOS)."""
        body = {"prompt": text, "add_special_tokens": special}
        return self._ask("POST", "/v1/tokenize", body, self.timeouts.control, answers.token_ids)

    def detokenize(self, ids: Sequence[int]) -> str:
        """The text of token ids, special tokens too."""
        body = {"tokens": list(ids), "skip_special_tokens": False}
        return self._ask("POST", "/v1/detokenize", body, self.timeouts.control, answers.detokenized)

    def tokenize_messages(
        self, messages: Sequence[Mapping[str, str]], *, template_kwargs: Mapping[str, object] | None = None
    ) -> Ids:
        """The ids of these messages' prompt; EngineRefusal where /v1/tokenize takes text alone (0.5.11)."""
        body = {
            "messages": [dict(message) for message in messages],
            "chat_template_kwargs": template_kwargs or {},
        }
        return self._ask("POST", "/v1/tokenize", body, self.timeouts.control, answers.token_ids)

    def generate(self, prompt: str | Sequence[int], sampling: Sampling) -> Generation:
        """One completion of a text or of token ids, as they are: no template is applied."""
        began = self.clock.monotonic()
        asked = {"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}
        return self._ask(
            "POST",
            "/generate",
            {**asked, "sampling_params": sampling.native()},
            self.timeouts.generate,
            lambda body: answers.generation(body, self.clock.monotonic() - began),
        )

    def generate_batch(self, prompts: Sequence[Sequence[int]], sampling: Sampling) -> tuple[Generation, ...]:
        """One completion for each list of ids, all in one call, in their order."""
        began = self.clock.monotonic()
        return self._ask(
            "POST",
            "/generate",
            {"input_ids": [list(prompt) for prompt in prompts], "sampling_params": sampling.native()},
            self.timeouts.generate,
            lambda body: answers.generations(body, len(prompts), self.clock.monotonic() - began),
        )

    def chat(
        self,
        messages: Sequence[Mapping[str, str]],
        sampling: Sampling,
        *,
        template_kwargs: Mapping[str, object] | None = None,
    ) -> answers.ChatReply:
        """One answer of the OpenAI route, through the model's own chat template."""
        body: dict[str, object] = {
            "model": "default",
            "messages": [dict(message) for message in messages],
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
            "ignore_eos": sampling.ignore_eos,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        if template_kwargs:
            body["chat_template_kwargs"] = dict(template_kwargs)
        path = "/v1/chat/completions"
        return self._ask("POST", path, body, self.timeouts.generate, answers.chat_reply)

    def flush_cache(self) -> None:
        """Empties the prefix cache and resets the engine's counters.

        An engine with requests in flight answers 400; it is asked again until `timeouts.flush` is over.
        """
        deadline = self.clock.monotonic() + self.timeouts.flush
        while True:
            status, text = self._call("POST", "/flush_cache", None, self.timeouts.control, accept=(200, 400))
            if status == 200:
                return
            if self.clock.monotonic() >= deadline:
                message = (
                    f"got 400 for {self.timeouts.flush:.0f} s ({excerpt(text)}), expected an idle engine"
                )
                hint = "requests are in flight: keep traffic off the node while it is being proven"
                raise EngineRefusal("/flush_cache", message, status=400, hint=hint, node=self.node)
            self.clock.sleep(self.timeouts.flush_retry)

    def _ask(
        self, method: str, path: str, body: object, deadline_s: float, reader: Callable[[object], Value]
    ) -> Value:
        _, text = self._call(method, path, body, deadline_s, accept=(200,))
        return self._read(path, text, reader)

    def _read(self, path: str, text: str, reader: Callable[[object], Value]) -> Value:
        try:
            return reader(answers.sound(json.loads(text)))
        except json.JSONDecodeError as error:
            message = f"got {excerpt(text)!r}, expected JSON"
            raise EngineRefusal(path, message, status=200, hint=_LOGS, node=self.node) from error
        except answers.Unlike as error:
            raise EngineRefusal(path, str(error), status=200, hint=_LOGS, node=self.node) from error

    def _call(
        self,
        method: str,
        path: str,
        body: object,
        deadline_s: float,
        *,
        accept: tuple[int, ...],
        follow: bool = False,
    ) -> tuple[int, str]:
        """Status and body; the one place where httpx's exceptions become ours."""
        limits = httpx.Timeout(deadline_s, connect=self.timeouts.connect)
        try:
            with self._http.stream(
                method, path, json=body, timeout=limits, follow_redirects=follow
            ) as response:
                text = self._body(response, deadline_s)
                status = response.status_code
        except httpx.TimeoutException as error:
            slow = self.timeouts.connect if isinstance(error, httpx.ConnectTimeout) else deadline_s
            message = f"got nothing within {slow:g} s, expected an answer"
            raise EngineTimeout(path, message, hint=_LOGS, node=self.node) from error
        except httpx.RequestError as error:
            message = f"got {str(error) or type(error).__name__} from {self.base_url}, expected an answer"
            raise EngineDown(path, message, hint=_LOGS, node=self.node) from error
        if status not in accept:
            message = f"got {status} ({excerpt(text)}), expected {accept[0]}"
            raise EngineRefusal(path, message, status=status, hint=_hint(status), node=self.node)
        return status, text

    def _body(self, response: httpx.Response, deadline_s: float) -> str:
        """The whole body, unless it drips in for longer than the call may take."""
        began = self.clock.monotonic()
        parts = []
        for part in response.iter_bytes():
            parts.append(part)
            if self.clock.monotonic() - began > deadline_s:
                raise httpx.ReadTimeout("the body never ended")
        return b"".join(parts).decode("utf-8", "replace")


_LOGS = "ddtree-ops logs shows what the engine does; ddtree-ops status whether it runs"
_HINTS = {
    401: "put the key into the profile's environment_file, and --api-key ${NAME} into its extra_flags",
    404: "this SGLang does not offer the route; ddtree-ops probe shows its version",
    503: "the engine is starting, draining or unhealthy; " + _LOGS,
}


def _hint(status: int) -> str:
    return _HINTS.get(status, _LOGS if status >= 500 else "")
