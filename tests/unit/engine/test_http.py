"""The client reads what SGLang answers, and turns whatever goes wrong into one of our errors."""

from __future__ import annotations

import json
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from ddtree_ops.engine.answers import ServedModel
from ddtree_ops.engine.http import (
    EngineClient,
    EngineDown,
    EngineRefusal,
    EngineTimeout,
    Sampling,
    Timeouts,
)
from ddtree_ops.model.generation import Generation
from ddtree_ops.model.ports import Clock

CASES = Path(__file__).parents[2] / "cases"
Serve = Callable[[Mapping[str, Any]], str]
QUICK = Timeouts(connect=1.0, control=0.3, generate=0.3, flush=2.0, flush_retry=0.5)
ONE = Sampling(max_tokens=4)


def answered(text: str, ids: list[int], **meta: object) -> dict[str, object]:
    base = {
        "id": "r",
        "finish_reason": {"type": "length", "length": len(ids)},
        "prompt_tokens": 3,
        "completion_tokens": len(ids),
        "cached_tokens": 1,
    }
    return {"text": text, "output_ids": ids, "meta_info": {**base, **meta}}


@pytest.fixture
def client(serve: Serve, clock: Clock) -> Iterator[Callable[..., EngineClient]]:
    clients = []

    def make(routes: Mapping[str, Any], timeouts: Timeouts = QUICK, **more: Any) -> EngineClient:
        clients.append(
            EngineClient(base_url=serve(routes), clock=clock, timeouts=timeouts, node="n1", **more)
        )
        return clients[-1]

    yield make
    for each in clients:
        each.close()


def test_a_completion_carries_the_engines_own_ids_and_steps(client: Callable[..., EngineClient]) -> None:
    asked = []

    def generate(request: dict[str, Any]) -> tuple[int, object]:
        asked.append(request["body"])
        return 200, answered(" sea", [5, 6, 7, 8], spec_verify_ct=2, spec_accept_length=2.0)

    got = client({"POST /generate": generate}).generate(
        [1, 2, 3], Sampling(max_tokens=4, seed=7, ignore_eos=True)
    )
    assert got.seconds >= 0
    assert got == Generation(
        text=" sea",
        output_ids=(5, 6, 7, 8),
        prompt_tokens=3,
        completion_tokens=4,
        cached_tokens=1,
        verify_steps=2,
        finish="length",
        seconds=got.seconds,
    )
    assert got.accept_length == 2.0
    params = {"max_new_tokens": 4, "temperature": 0.0, "sampling_seed": 7, "ignore_eos": True}
    assert asked == [{"input_ids": [1, 2, 3], "sampling_params": params}]


def test_a_text_goes_as_text_and_no_speculation_gives_no_accept_length(
    client: Callable[..., EngineClient],
) -> None:
    asked = []

    def generate(request: dict[str, Any]) -> tuple[int, object]:
        asked.append(request["body"]["text"])
        return 200, answered("x", [5], finish_reason={"type": "stop", "matched": 2})

    got = client({"POST /generate": generate}).generate("hello", ONE)
    assert (asked, got.accept_length, got.finish) == (["hello"], None, "stop")


def test_a_batch_is_one_call_and_keeps_its_order(client: Callable[..., EngineClient]) -> None:
    def generate(request: dict[str, Any]) -> tuple[int, object]:
        return 200, [answered("x", [ids[-1] + 1]) for ids in request["body"]["input_ids"]]

    got = client({"POST /generate": generate}).generate_batch(
        [[1], [1, 2], [1, 2, 3]], Sampling(max_tokens=1)
    )
    assert [each.output_ids for each in got] == [(2,), (3,), (4,)]


def test_calls_from_several_threads_do_not_mix(client: Callable[..., EngineClient]) -> None:
    def generate(request: dict[str, Any]) -> tuple[int, object]:
        time.sleep(0.02)
        return 200, answered("x", request["body"]["input_ids"])

    engine = client({"POST /generate": generate}, Timeouts())
    with ThreadPoolExecutor(8) as pool:
        got = list(pool.map(lambda number: engine.generate([number], ONE).output_ids, range(32)))
    assert got == [(number,) for number in range(32)]


def test_models_info_metrics_and_tokens_are_read(client: Callable[..., EngineClient]) -> None:
    info = json.loads((CASES / "server_info" / "dflash-0.5.11.json").read_text())
    engine = client(
        {
            "GET /health": lambda _: (200, ""),
            "GET /v1/models": lambda _: (200, {"data": [{"id": "k26", "max_model_len": 262144}]}),
            "GET /server_info": lambda _: (200, info),
            "GET /metrics": lambda _: (200, "# TYPE a gauge\na 1\n"),
            "POST /v1/tokenize": lambda r: (
                200,
                {"tokens": [ord(c) for c in r["body"]["prompt"]], "count": 2},
            ),
        }
    )
    assert engine.health() is True
    assert engine.models() == (ServedModel(id="k26", context_length=262144),)
    assert engine.server_info().version == "0.5.11"
    assert [(sample.name, sample.value) for sample in engine.metrics()] == [("a", 1.0)]
    assert engine.tokenize("ab") == (97, 98)


def test_an_older_engine_is_asked_for_its_state_by_the_older_name(
    client: Callable[..., EngineClient],
) -> None:
    engine = client({"GET /get_server_info": lambda _: (200, {"version": "0.5.9"})})
    assert engine.server_info().version == "0.5.9"


def test_chat_reads_text_reasoning_and_usage(client: Callable[..., EngineClient]) -> None:
    asked = []

    def chat(request: dict[str, Any]) -> tuple[int, object]:
        asked.append(request["body"])
        message = {"role": "assistant", "content": None, "reasoning_content": "hm"}
        usage = {"prompt_tokens": 9, "completion_tokens": 2}
        return 200, {"choices": [{"message": message, "finish_reason": "length"}], "usage": usage}

    engine = client({"POST /v1/chat/completions": chat})
    reply = engine.chat([{"role": "user", "content": "hi"}], ONE, template_kwargs={"thinking": False})
    assert (reply.text, reply.reasoning, reply.prompt_tokens, reply.finish) == ("", "hm", 9, "length")
    assert asked[0]["chat_template_kwargs"] == {"thinking": False}
    assert asked[0]["messages"] == [{"role": "user", "content": "hi"}]


def test_an_unhealthy_engine_is_no_error(client: Callable[..., EngineClient]) -> None:
    assert client({"GET /health": lambda _: (503, "")}).health() is False


def test_the_key_goes_with_every_call_and_never_into_a_message(client: Callable[..., EngineClient]) -> None:
    seen = []

    def health(request: dict[str, Any]) -> tuple[int, object]:
        seen.append(request["headers"]["Authorization"])
        return 401, {"error": "Unauthorized"}

    engine = client({"GET /health": health}, api_key="s3cret")
    with pytest.raises(EngineRefusal) as caught:
        engine.health()
    assert seen == ["Bearer s3cret"]
    assert "s3cret" not in f"{caught.value} {engine!r}"
    assert "--api-key" in caught.value.hint


def test_a_busy_engine_is_asked_again_until_it_flushes(
    client: Callable[..., EngineClient], clock: Any
) -> None:
    left = [400, 400, 200]
    engine = client({"POST /flush_cache": lambda _: (left.pop(0), "Flush cache failed.\n")})
    engine.flush_cache()
    assert (left, clock.sleeps) == ([], [0.5, 0.5])


def test_an_engine_that_stays_busy_is_given_up_after_the_deadline(
    client: Callable[..., EngineClient],
) -> None:
    engine = client({"POST /flush_cache": lambda _: (400, "Flush cache failed.\n")})
    with pytest.raises(
        EngineRefusal, match=r"got 400 for 2 s \(Flush cache failed\.\), expected an idle engine"
    ):
        engine.flush_cache()


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (400, {"error": {"message": "too long"}}, "got 400 .*too long.*expected 200"),
        (500, "Internal Server Error", r"got 500 \(Internal Server Error\)"),
        (503, "", "got 503"),
        (200, "<html>proxy</html>", "got '<html>proxy</html>', expected JSON"),
        (200, b"\xff\xfe", "expected JSON"),
        (200, {"error": {"message": "out of luck"}}, "got 200 with an error in it: out of luck"),
        (200, {"object": "error", "message": "bad model"}, "got 200 with an error in it: bad model"),
        (200, {"text": "no meta"}, "got None, expected an object"),
        (200, [], "expected an object"),
        (200, answered("x", ["a"]), "expected token ids"),  # type: ignore[list-item]
        (
            200,
            answered("", [], finish_reason={"type": "abort", "message": "OOM"}),
            r"aborted request \(OOM\)",
        ),
    ],
)
def test_an_answer_that_is_none_is_told_in_words(
    client: Callable[..., EngineClient], status: int, body: object, message: str
) -> None:
    with pytest.raises(EngineRefusal, match=message) as caught:
        client({"POST /generate": lambda _: (status, body)}).generate([1], ONE)
    assert (caught.value.node, caught.value.what, caught.value.status) == ("n1", "/generate", status)


def test_a_batch_of_the_wrong_size_is_refused(client: Callable[..., EngineClient]) -> None:
    engine = client({"POST /generate": lambda _: (200, [answered("x", [1])])})
    with pytest.raises(EngineRefusal, match="got 1 answers, expected 2"):
        engine.generate_batch([[1], [2]], ONE)


def test_a_long_body_is_cut_in_the_message(client: Callable[..., EngineClient]) -> None:
    with pytest.raises(EngineRefusal) as caught:
        client({"POST /generate": lambda _: (500, "x" * 9000)}).generate([1], ONE)
    assert len(caught.value.message) < 400


def test_an_engine_that_says_nothing_times_out(client: Callable[..., EngineClient]) -> None:
    def hang(_: object) -> tuple[int, object]:
        time.sleep(1.0)
        return 0, ""

    with pytest.raises(EngineTimeout, match=r"got nothing within 0\.3 s"):
        client({"POST /generate": hang}).generate([1], ONE)


def test_a_body_that_drips_for_ever_times_out_too(client: Callable[..., EngineClient]) -> None:
    def drip(request: dict[str, Any]) -> tuple[int, object]:
        request["raw"].write(b"HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n")
        for _ in range(12):
            try:
                request["raw"].write(b" ")
            except OSError:
                break
            time.sleep(0.1)
        return 0, ""

    with pytest.raises(EngineTimeout):
        client({"POST /generate": drip}).generate([1], ONE)


def test_an_engine_that_hangs_up_is_down(clock: Clock) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener, ThreadPoolExecutor(1) as pool:

        def half_an_answer() -> None:
            connection, _ = listener.accept()
            with connection:
                connection.recv(65536)
                connection.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\nhalf")

        done = pool.submit(half_an_answer)
        url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        with EngineClient(base_url=url, clock=clock, timeouts=QUICK) as engine, pytest.raises(EngineDown):
            engine.models()
        done.result()


def test_a_port_where_nobody_listens_is_down(clock: Clock) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
    with (
        EngineClient(base_url=url, clock=clock, timeouts=QUICK, node="n1") as engine,
        pytest.raises(EngineDown, match="refused") as caught,
    ):
        engine.models()
    assert (caught.value.exit_code, bool(caught.value.hint)) == (1, True)
