"""Shows on the node itself that an engine answers as its own prefill says it should.

Prefill never looks at the draft tree's mask. So the greedy output t1…tn is right when a one-token
request for prompt + t1…t(i-1) gives ti, for each i. A reduction order that differs may flip a near
tie: one token in ten may differ, a broken tree flips most.
"""

from __future__ import annotations

import json
import time
import urllib.error
import urllib.request
from typing import Any, Callable

from .base import Json

POLL_S = 1.0
ANSWER_S = 120.0


class NotYet(Exception):
    """The engine does not answer, or not as an engine that has loaded."""


class Never(Exception):
    """The engine answers, and declines the request itself."""


def prove_engine(proof: Json, gave_up: Callable[[], str], key: Callable[[], str]) -> Json:
    """Waits for the engine and judges it: {proven, evidence}.

    `gave_up` says why waiting is vain, `key` what the engine wants as a bearer token.
    """
    deadline = time.monotonic() + float(proof["deadline_s"])
    while True:
        try:
            return _judge(_Engine(proof["host"], int(proof["port"]), key()), proof)
        except Never as error:
            return {"proven": False, "evidence": str(error)}
        except NotYet as error:
            seen = str(error)
        reason = gave_up()
        if not reason and time.monotonic() > deadline:
            reason = f"no answer within {float(proof['deadline_s']):.0f} s"
        if reason:
            return {"proven": False, "evidence": f"{reason}; last seen: {seen}"}
        time.sleep(POLL_S)


def _judge(engine: _Engine, proof: Json) -> Json:
    prompt = list(proof.get("prompt_ids") or engine.tokenize(proof.get("text") or "Hello"))
    engine.flush()
    output = engine.greedy(prompt, int(proof["tokens"]))
    if not output:
        return {"proven": False, "evidence": "the engine gave no token ids"}
    engine.flush()  # keys written by a broken verify pass would repeat its fault
    wrong = [i for i, token in enumerate(output) if engine.greedy(prompt + output[:i], 1)[:1] != [token]]
    evidence = f"{len(output) - len(wrong)} of {len(output)} greedy tokens agree with prefill"
    if wrong:
        evidence += f", the first other one at {wrong[0]}"
    return {"proven": len(wrong) <= len(output) // 10, "evidence": evidence}


class _Engine:
    """The three routes of an SGLang server that the proof needs."""

    def __init__(self, host: str, port: int, key: str) -> None:
        host = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)
        self._url = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
        self._headers = {"Content-Type": "application/json"}
        if key:
            self._headers["Authorization"] = f"Bearer {key}"
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def tokenize(self, text: str) -> list[int]:
        return [int(token) for token in self._post("/tokenize", {"prompt": text}).get("tokens") or []]

    def flush(self) -> None:
        """Empties the prefix cache; a busy engine declines, which is no reason to wait."""
        try:
            self._request("/flush_cache", b"")
        except urllib.error.HTTPError as error:
            error.close()
        except (OSError, ValueError) as error:
            raise NotYet(f"/flush_cache: {error}") from error

    def greedy(self, ids: list[int], count: int) -> list[int]:
        sampling = {"temperature": 0, "max_new_tokens": count, "ignore_eos": False}
        answer = self._post("/generate", {"input_ids": ids, "sampling_params": sampling})
        return [int(token) for token in answer.get("output_ids") or []]

    def _post(self, path: str, body: Json) -> Json:
        try:
            answer: Any = json.loads(self._request(path, json.dumps(body).encode()))
        except urllib.error.HTTPError as error:
            error.close()
            declined = Never if 400 <= error.code < 500 else NotYet
            raise declined(f"{path}: HTTP {error.code}") from error
        except (OSError, ValueError) as error:
            raise NotYet(f"{path}: {error}") from error
        if not isinstance(answer, dict):
            raise NotYet(f"{path}: no JSON object")
        return answer

    def _request(self, path: str, body: bytes) -> bytes:
        request = urllib.request.Request(self._url + path, data=body, headers=self._headers, method="POST")
        with self._open(request, timeout=ANSWER_S) as answer:
            return bytes(answer.read())
