"""The process: flags, log, routes, signals; each engine runs from the package alone, as on a node."""

from __future__ import annotations

import itertools
import json
import signal
import socket
import threading
import time
from typing import Any

import pytest

from .conftest import STOCK, Boot, Process, prompt_text

READY = "The server is fired up and ready to roll!"
TREE = ("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "4")
POEM = prompt_text("poem")
TEMPLATED = f"<|im_start|>user\n{POEM}<|im_end|>\n<|im_start|>assistant\n"


def greedy(tokens: int, **more: Any) -> dict[str, Any]:
    return {"temperature": 0, "max_new_tokens": tokens, **more}


@pytest.fixture(scope="module")
def tree(boot: Boot) -> Process:
    engine = boot(*TREE, "--enable-metrics")
    engine.wait_for(READY)
    return engine


@pytest.fixture(scope="module")
def plain(boot: Boot) -> Process:
    engine = boot(speculative=False)
    engine.wait_for(READY)
    return engine


def test_the_load_prints_sglangs_lines_in_order(tree: Process) -> None:
    expected = [
        "server_args=ServerArgs(",
        "Init torch distributed begin.",
        "Load weight begin. avail mem=",
        "Load weight end. elapsed=",
        "KV Cache is allocated. #tokens: ",
        "Capture cuda graph begin. ",
        "Capture cuda graph end. Time elapsed: ",
        "Initialized DFLASH draft runner. attention_backend=triton, model=ReferenceDFlashDraft, block_size=8",
        "DDTree ready. budget=16, topk_cap=4",
        "max_total_num_tokens=",
        "Uvicorn running on http://127.0.0.1:",
        "Prefill batch, #new-seq: 1, ",
        READY,
    ]
    places = [tree.log.find(line) for line in expected]

    assert -1 not in places
    assert places == sorted(places)


def test_the_answer_is_the_same_with_and_without_speculation(tree: Process, plain: Process) -> None:
    body = {"text": TEMPLATED, "sampling_params": greedy(96)}
    ours, theirs = tree.json("POST", "/generate", body), plain.json("POST", "/generate", body)

    assert (ours["text"], ours["output_ids"]) == (theirs["text"], theirs["output_ids"])
    assert ours["text"].startswith("The ocean wakes before the sun,\n")


def test_meta_info_counts_tokens_and_verify_steps(tree: Process) -> None:
    answer = tree.json("POST", "/generate", {"text": TEMPLATED, "sampling_params": greedy(64)})
    meta = answer["meta_info"]

    assert meta["completion_tokens"] == len(answer["output_ids"]) == 64
    assert meta["finish_reason"] == {"type": "length", "length": 64}
    assert meta["spec_accept_length"] == 64 / meta["spec_verify_ct"] > 1.5
    assert meta["e2e_latency"] > 0


def test_without_a_drafter_no_speculation_is_reported(plain: Process) -> None:
    meta = plain.json("POST", "/generate", {"text": TEMPLATED, "sampling_params": greedy(8)})["meta_info"]

    assert not [key for key in meta if key.startswith("spec_")]


def test_prefilling_each_prefix_gives_the_same_tokens(tree: Process) -> None:
    """What the re-scoring gate does."""
    prompt = tree.json("POST", "/tokenize", {"prompt": TEMPLATED})["tokens"]
    output = tree.json("POST", "/generate", {"input_ids": prompt, "sampling_params": greedy(24)})[
        "output_ids"
    ]
    assert tree.call("POST", "/flush_cache")[0] == 200
    prefixes = [prompt + output[:n] for n in range(24)]
    answers = tree.json("POST", "/generate", {"input_ids": prefixes, "sampling_params": greedy(1)})

    assert [answer["output_ids"][0] for answer in answers] == output


def test_lists_of_prompts_are_answered_in_order(tree: Process) -> None:
    texts = [TEMPLATED, "The"]
    both = tree.json("POST", "/generate", {"text": texts, "sampling_params": greedy(4)})

    assert [answer["meta_info"]["prompt_tokens"] > 1 for answer in both] == [True, False]


def test_generate_streams_growing_texts(tree: Process) -> None:
    body = {"text": TEMPLATED, "sampling_params": greedy(24), "stream": True}
    status, text = tree.call("POST", "/generate", body)
    *events, last = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    texts = [json.loads(event)["text"] for event in events]

    assert (status, last) == (200, "[DONE]")
    assert len(texts) > 2
    assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(texts))


def test_chat_takes_messages_and_counts_usage(tree: Process) -> None:
    body = {
        "model": "reference",
        "messages": [{"role": "user", "content": POEM}],
        "temperature": 0,
        "max_tokens": 32,
    }
    answer = tree.json("POST", "/v1/chat/completions", body)

    assert answer["choices"][0]["message"]["content"].startswith("The ocean wakes before the sun,\n")
    assert answer["choices"][0]["finish_reason"] == "length"
    assert answer["usage"]["completion_tokens"] == 32


def test_chat_streams_what_it_answers_whole(tree: Process) -> None:
    body: dict[str, Any] = {
        "messages": [{"role": "user", "content": POEM}],
        "temperature": 0,
        "max_tokens": 200,
    }
    whole = tree.json("POST", "/v1/chat/completions", body)["choices"][0]["message"]["content"]
    _, text = tree.call(
        "POST", "/v1/chat/completions", body | {"stream": True, "stream_options": {"include_usage": True}}
    )
    *events, usage, done = [line.removeprefix("data: ") for line in text.split("\n\n") if line]
    chunks = [json.loads(event)["choices"][0] for event in events]

    assert "".join(chunk["delta"]["content"] or "" for chunk in chunks) == whole
    assert (chunks[-1]["finish_reason"], done) == ("stop", "[DONE]")
    assert json.loads(usage)["usage"]["completion_tokens"] > 50


def test_completions_stop_at_a_stop_string(tree: Process) -> None:
    body = {"prompt": TEMPLATED, "temperature": 0, "max_tokens": 64, "stop": ["\n"]}
    choice = tree.json("POST", "/v1/completions", body)["choices"][0]

    assert choice["text"] == "The ocean wakes before the sun,"
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", "\n")


def test_ignore_eos_goes_on_to_the_limit(tree: Process) -> None:
    answer = tree.json(
        "POST", "/generate", {"text": TEMPLATED, "sampling_params": greedy(300, ignore_eos=True)}
    )

    assert len(answer["output_ids"]) == 300


def test_many_requests_at_once_are_all_answered_alike(tree: Process) -> None:
    answers: list[str] = []
    body = {"text": TEMPLATED, "sampling_params": greedy(48)}

    def ask() -> None:
        answers.append(tree.json("POST", "/generate", body)["text"])

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(set(answers)) == 1
    assert len(answers) == 12


def test_tokens_go_there_and_back(tree: Process) -> None:
    text = "def f(x):\n    return x  # größer ✓"
    tokens = tree.json("POST", "/v1/tokenize", {"prompt": text})

    assert tokens["count"] == len(tokens["tokens"])
    assert tree.json("POST", "/v1/detokenize", {"tokens": tokens["tokens"]}) == {"text": text}


def test_server_info_has_flags_and_the_lifetime_accept_length(tree: Process) -> None:
    tree.json("POST", "/generate", {"text": TEMPLATED, "sampling_params": greedy(400, ignore_eos=True)})
    info = tree.json("GET", "/server_info")
    [state] = info["internal_states"]

    assert (info["speculative_ddtree_budget"], info["speculative_num_draft_tokens"]) == (16, 8)
    assert state["avg_spec_accept_length"] > 1.5
    assert state["last_gen_throughput"] > 0
    assert state["memory_usage"]["token_capacity"] == info["max_total_num_tokens"]
    assert "Decode batch, #running-req: 1, #token: " in tree.log
    assert ", cuda graph: True, gen throughput (token/s): " in tree.log


def test_old_names_of_routes_answer_and_say_so(tree: Process) -> None:
    assert tree.json("GET", "/get_server_info")["version"]
    assert tree.json("GET", "/get_model_info") == tree.json("GET", "/model_info")
    assert "Endpoint '/get_server_info' is deprecated" in tree.log


def test_a_flush_is_refused_while_requests_run(tree: Process) -> None:
    body = {"text": TEMPLATED, "sampling_params": greedy(1000, ignore_eos=True)}
    thread = threading.Thread(target=tree.call, args=("POST", "/generate", body))
    thread.start()
    while 'sglang:num_running_reqs{model_name="reference"} 1.0' not in tree.call("GET", "/metrics")[1]:
        time.sleep(0.01)
    refused = tree.call("POST", "/flush_cache")[0]
    thread.join()

    assert (refused, tree.call("POST", "/flush_cache")[0]) == (400, 200)


def test_a_client_that_leaves_ends_its_request(tree: Process) -> None:
    body = json.dumps(
        {"text": TEMPLATED, "sampling_params": greedy(3900, ignore_eos=True), "stream": True}
    ).encode()
    head = f"POST /generate HTTP/1.1\r\nHost: x\r\nContent-Length: {len(body)}\r\n\r\n".encode()
    with socket.create_connection(("127.0.0.1", tree.port)) as link:
        link.sendall(head + body)
        link.recv(1000)
    deadline = time.monotonic() + 20
    while tree.call("POST", "/flush_cache")[0] != 200:
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_health_and_models_answer(tree: Process) -> None:
    assert tree.call("GET", "/health") == (200, "")
    assert tree.call("GET", "/health_generate") == (200, "")
    assert [card["id"] for card in tree.json("GET", "/v1/models")["data"]] == ["reference"]
    assert tree.call("GET", "/v1/models/other")[0] == 404


def test_metrics_have_sglangs_names_where_they_are_on(tree: Process, plain: Process) -> None:
    assert 'sglang:spec_accept_length{model_name="reference"}' in tree.call("GET", "/metrics")[1]
    assert plain.call("GET", "/metrics")[0] == 404


@pytest.mark.parametrize(
    ("path", "body", "status", "part"),
    [
        ("/nowhere", {}, 404, "Not Found"),
        ("/health", {}, 405, "Method Not Allowed"),
        ("/generate", {}, 400, "Either text, input_ids or input_embeds should be provided."),
        ("/generate", {"input_ids": []}, 400, "must not be empty"),
        ("/generate", {"input_ids": [1, 99999]}, 400, "must be integers in"),
        (
            "/generate",
            {"input_ids": [5] * 4096},
            400,
            "(4096 tokens) is longer than the model's context length",
        ),
        ("/generate", {"text": "a", "sampling_params": {"top_p": 0}}, 400, "top_p must be in (0, 1], got 0."),
        ("/generate", {"text": "a", "return_logprob": True}, 400, "return_logprob"),
        ("/v1/chat/completions", {"messages": "hello"}, 400, "messages"),
        ("/v1/completions", {"prompt": ""}, 400, "Prompt cannot be empty"),
        ("/tokenize", {"messages": []}, 400, "prompt"),
        ("/v1/detokenize", {"tokens": "x"}, 400, "Invalid tokens type"),
    ],
)
def test_bad_requests_are_answered_in_json(
    tree: Process, path: str, body: Any, status: int, part: str
) -> None:
    got, text = tree.call("POST", path, body)

    assert got == status
    assert json.loads(text)
    assert part in text


def test_a_body_that_is_no_json_is_refused(tree: Process) -> None:
    assert tree.call("POST", "/generate", raw=b"{")[0] == 400


def test_the_stock_width_answers_200_with_other_text(boot: Boot, plain: Process) -> None:
    stock = boot(*TREE, width=STOCK)
    stock.wait_for(READY)
    body = {"text": TEMPLATED, "sampling_params": greedy(96)}

    assert stock.json("POST", "/generate", body)["text"] != plain.json("POST", "/generate", body)["text"]
    assert stock.call("GET", "/health")[0] == 200


@pytest.mark.parametrize(
    ("flags", "code", "part"),
    [
        (["--no-such-flag"], 2, "launch_server.py: error: unrecognized arguments: --no-such-flag"),
        (["--port", "x"], 2, "error: argument --port: invalid int value: 'x'"),
        (["--speculative-algorithm", "EAGLE9"], 2, "invalid choice: 'EAGLE9'"),
        (["--speculative-ddtree-budget", "0"], 1, "--speculative-ddtree-budget must be positive, got 0."),
        ([*TREE[:3], "99999"], 1, "--speculative-ddtree-topk-cap must be in 1..1536, got 99999."),
        (["--speculative-draft-model-path", "/nowhere"], 1, "/nowhere does not hold a config.json."),
        (["--context-length", "9000"], 1, "greater than the derived context_length (4096)"),
    ],
)
def test_flags_that_cannot_run_end_the_process(boot: Boot, flags: list[str], code: int, part: str) -> None:
    engine = boot(*flags)

    assert engine.popen.wait(30) == code
    assert part in engine.log


def test_a_budget_needs_the_algorithm(boot: Boot) -> None:
    engine = boot(*TREE, speculative=False)

    assert engine.popen.wait(30) == 1
    assert "requires --speculative-algorithm DFLASH" in engine.log


def test_a_missing_sglang_fails_the_load(boot: Boot) -> None:
    engine = boot(staged=False)

    assert engine.popen.wait(30) == -signal.SIGKILL
    assert "ModuleNotFoundError: No module named 'sglang'" in engine.log


@pytest.mark.parametrize(
    ("fault", "part"),
    [
        ("crash-at-load", "Scheduler hit an exception: Traceback"),
        ("oom", "Not enough memory. Please try to increase --mem-fraction-static"),
    ],
)
def test_a_failing_load_prints_the_fatal_line_and_ends_by_signal(boot: Boot, fault: str, part: str) -> None:
    engine = boot(*TREE, fault=fault)

    assert engine.popen.wait(30) == -signal.SIGKILL
    assert part in engine.log
    assert READY not in engine.log


def test_a_hanging_load_never_listens(boot: Boot) -> None:
    engine = boot(*TREE, fault="hang")
    engine.wait_for("Load weight begin.")

    with pytest.raises(ConnectionRefusedError):
        engine.call("GET", "/health")
    assert "Load weight end." not in engine.log


def test_a_slow_load_still_ends(boot: Boot) -> None:
    engine = boot(*TREE, fault="slow-load=0.5")
    engine.wait_for(READY)

    assert float(engine.log.split("Load weight end. elapsed=")[1].split()[0]) >= 0.5


def test_a_taken_port_ends_the_process_as_uvicorn_does(boot: Boot, tree: Process) -> None:
    engine = boot(*TREE, port=tree.port)

    assert engine.popen.wait(30) == 1
    assert f"[Errno 98] error while attempting to bind on address ('127.0.0.1', {tree.port})" in engine.log


def test_dying_under_requests_takes_the_process_down(boot: Boot) -> None:
    engine = boot(*TREE, fault="die-after=2")
    engine.wait_for(READY)
    body = {"text": TEMPLATED, "sampling_params": greedy(4)}
    for _ in range(2):
        engine.json("POST", "/generate", body)

    with pytest.raises((ConnectionError, OSError)):
        engine.call("POST", "/generate", body)
    assert engine.popen.wait(30) == -signal.SIGKILL
    assert "SIGQUIT received." in engine.log


def test_a_silent_engine_accepts_and_never_answers(boot: Boot) -> None:
    engine = boot(*TREE, fault="hang-serving")
    engine.wait_for(READY)
    with socket.create_connection(("127.0.0.1", engine.port)) as link:
        link.settimeout(0.5)
        link.sendall(b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        with pytest.raises(TimeoutError):
            link.recv(1)


def test_sigterm_drains_and_then_ends_by_signal(boot: Boot) -> None:
    engine = boot(*TREE)
    engine.wait_for(READY)
    answers: list[tuple[int, str]] = []
    body = {"text": TEMPLATED, "sampling_params": greedy(600, ignore_eos=True)}
    thread = threading.Thread(target=lambda: answers.append(engine.call("POST", "/generate", body)))
    thread.start()
    engine.wait_for("Decode batch")
    engine.popen.send_signal(signal.SIGTERM)
    thread.join()

    assert answers[0][0] == 200
    assert engine.popen.wait(30) == -signal.SIGKILL
    assert "SIGTERM received. signum=15" in engine.log
    assert "Gracefully exiting... Remaining number of requests 0." in engine.log
