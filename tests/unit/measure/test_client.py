"""The load client against real sockets: what it counts, and what it says when a server misbehaves."""

from __future__ import annotations

import gc
import socket
import sys
import time

import pytest

from ddtree_ops.measure.client import Closed, Load, Outcome, Poisson, Prompt, Route, run_load
from ddtree_ops.measure.client.arrival import Arrivals
from ddtree_ops.measure.client.arrival import ask as ask_for_stamps
from ddtree_ops.measure.client.exchange import Exchange
from ddtree_ops.measure.client.reactor import Reactor
from ddtree_ops.measure.metrics import Limits, summarise
from ddtree_ops.model.errors import Unreachable, UsageError

from .conftest import END, HEAD, chunk, event, native, stream, whole

GOOD = stream(native(1, steps=0), native(5, steps=1), native(8, steps=2, finish="length"))


def one(requests=1, users=1, **more):
    return Load(shape=Closed(concurrency=users), requests=requests, **more)


def chat(content=None, tokens=None, finish=None, reasoning=None, usage=True):
    """One event of /v1/chat/completions."""
    delta = {"content": content, "reasoning_content": reasoning}
    data = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage and tokens is not None:
        data["usage"] = {"prompt_tokens": 3, "completion_tokens": tokens}
    return event(data)


def test_tokens_come_from_the_servers_count_and_not_from_chunks(serve, ask):
    """Three chunks that carry eight tokens are eight tokens in two verify steps."""
    sample = run_load(serve(lambda *_: GOOD).target(), ask(1), one()).samples[0]
    assert (sample.outcome, sample.tokens, sample.verify_steps) == (Outcome.OK, 8, 2)
    assert [count for _, count in sample.arrivals] == [1, 5, 8]
    assert sample.accept_length == 4.0
    assert sample.text == "ab " * 8


def test_counts_are_the_same_when_texts_are_not_kept(serve, ask):
    """Without texts the running counts are read without parsing JSON, to the same end."""
    result = run_load(serve(lambda *_: GOOD).target(), ask(1), one(keep_text=False))
    sample = result.samples[0]
    assert [count for _, count in sample.arrivals] == [1, 5, 8]
    assert (sample.tokens, sample.verify_steps, sample.text) == (8, 2, "")


def test_every_byte_may_arrive_alone(serve, ask):
    """A response split at each byte reads the same as one in a piece."""
    data = b"".join(piece[1] for piece in GOOD)
    server = serve(lambda *_: [(0.0, data[n : n + 1]) for n in range(len(data))])
    result = run_load(server.target(), ask(2), one(2))
    assert [(s.outcome, s.tokens) for s in result.samples] == [(Outcome.OK, 8)] * 2


def test_a_connection_is_used_again(serve, ask):
    """Six requests of two users need two connections."""
    server = serve(lambda *_: GOOD)
    run_load(server.target(), ask(6), one(6, users=2))
    assert len(server._sockets) == 2


def test_a_connection_that_the_server_closed_while_idle_is_replaced(serve, ask):
    """Keep-alive that ended between two requests costs a handshake and no failure."""
    server = serve(lambda *_: [*GOOD, (0.01, b""), None])
    result = run_load(server.target(), ask(4), one(4))
    assert [s.outcome for s in result.samples] == [Outcome.OK] * 4


def test_warm_up_is_sent_and_kept_out(serve, ask):
    """Warm-up requests come first, and no figure counts them."""
    result = run_load(serve(lambda *_: GOOD).target(), ask(5), one(3, warmup=2))
    assert [s.warmup for s in result.samples] == [True, True, False, False, False]
    assert (summarise(result).requests, summarise(result).tokens) == (3, 24)


def test_latencies_follow_the_schedule(serve, ask):
    """Time to the first token and between tokens are those of the server."""
    server = serve(lambda *_: [(0.05, HEAD), (0.05, native(1)), (0.1, native(5, finish="length")), (0, END)])
    sample = run_load(server.target(), ask(1), one()).samples[0]
    assert sample.ttft == pytest.approx(0.1, abs=0.04)
    assert sample.tpot == pytest.approx(0.1 / 4, abs=0.01)
    assert sample.e2e == pytest.approx(0.2, abs=0.05)


def test_poisson_arrivals_do_not_wait_for_answers(serve, ask):
    """Open load keeps sending while the server thinks."""
    server = serve(lambda *_: [(0.3, HEAD), *GOOD[1:]])
    result = run_load(server.target(), ask(20), Load(shape=Poisson(rate=100), requests=20))
    assert max(s.start for s in result.samples) < 0.5 < min(s.end for s in result.samples) * 2
    assert [s.outcome for s in result.samples] == [Outcome.OK] * 20


def test_poisson_arrivals_are_the_same_for_the_same_seed(serve, ask):
    """Two runs with one seed are due at the same times."""
    server = serve(lambda *_: GOOD)
    first, again = (
        [s.start for s in run_load(server.target(), ask(5), Load(shape=Poisson(rate=50), requests=5)).samples]
        for _ in range(2)
    )
    assert first == pytest.approx(again, abs=1e-6)


@pytest.mark.parametrize("route", [Route.CHAT, Route.COMPLETIONS])
def test_openai_routes_ask_for_usage_and_count_by_it(serve, ask, route):
    """stream_options ask for running usage, and its counts are taken."""
    server = serve(lambda *_: stream(chat("", 0), chat("a b", 3), chat("c", 4, "stop"), chat("", 4)))
    sample = run_load(server.target(route, model="m"), ask(1), one()).samples[0]
    assert server.requests[0]["stream_options"] == {"include_usage": True, "continuous_usage_stats": True}
    assert (sample.outcome, sample.tokens) == (Outcome.OK, 4)
    assert [count for _, count in sample.arrivals] == [3, 4]
    assert sample.text == "a bc"


def test_reasoning_tokens_count_and_the_first_visible_text_is_told_apart(serve, ask):
    """A model that thinks first has an early first token and a late first visible one."""
    pieces = [chat(reasoning="hm", tokens=2), chat("yes", 5), chat("", 5, "stop")]
    server = serve(lambda *_: stream(*pieces, gap=0.03))
    result = run_load(server.target(Route.CHAT), ask(1), one())
    sample = result.samples[0]
    assert sample.arrivals[0][1] == 2
    assert sample.visible is not None
    assert sample.visible > sample.arrivals[0][0]
    assert summarise(result).visible is not None


def test_a_server_that_omits_usage_gets_times_but_no_token_figures(serve, ask):
    """Without counts there is a latency, no rate, and a finding that says so."""
    server = serve(lambda *_: stream(chat("a"), chat("b"), chat("", finish="stop")))
    summary = summarise(run_load(server.target(Route.CHAT), ask(1), one()))
    assert summary.ttft is not None
    assert (summary.output_rate, summary.tpot, summary.tokens, summary.usable) == (None, None, 0, False)
    assert "1 of 1 answers came without a token count: token figures left out" in summary.findings


BAD = {
    "error in a plain 200": (
        whole(b'{"error": {"message": "no such model"}}'), Outcome.ERROR_BODY, "no such model"),
    "OpenAI error in a plain 200": (
        whole(b'{"object": "error", "message": "too long"}'), Outcome.ERROR_BODY, "too long"),
    "error in the stream": (
        stream(native(1), event({"error": {"message": "no memory"}})), Outcome.ERROR_BODY, "no memory"),
    "aborted": (
        stream(native(1), native(2, finish_reason={"type": "abort", "message": "retracted"})),
        Outcome.ERROR_BODY, "aborted: retracted"),
    "not a stream": (whole(b"<html>hello</html>"), Outcome.ERROR_BODY, "not a stream: <html>hello</html>"),
    "empty stream": (stream(), Outcome.EARLY_END, "the stream stopped without a finish reason"),
    "empty body": (whole(b""), Outcome.EARLY_END, "the stream held no event"),
    "no finish reason": (
        stream(native(1), native(3)), Outcome.EARLY_END, "the stream stopped without a finish reason"),
    "closed mid-stream": (
        [(0, HEAD + native(1)), (0.02, b""), None], Outcome.EARLY_END, "the server closed the connection"),
    "429": (whole(b"slow down", "429 Too Many Requests"), Outcome.OVERLOADED, "slow down"),
    "503": (whole(b"", "503 Service Unavailable"), Outcome.OVERLOADED, ""),
    "500": (whole(b"Internal Server Error", "500 Oops"), Outcome.HTTP_ERROR, "Internal Server Error"),
    "closed without a word": ([None], Outcome.LOST, "the server closed the connection"),
    "not HTTP": ([(0, b"SSH-2.0-OpenSSH_9.2\r\n")], Outcome.LOST,
                 "got b'SSH-2.0-OpenSSH_9.2\\r\\n', expected an HTTP response"),
    "broken JSON": ([(0, HEAD + event(b"{oops") + END)], Outcome.ERROR_BODY, "not JSON: {oops"),
    "broken chunk": ([(0, HEAD + native(1) + b"zz\r\n" + END)], Outcome.EARLY_END,
                     "the stream stopped without a finish reason"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_a_bad_answer_is_named(serve, ask, case):
    """Each way of failing has its outcome and the server's own words, and makes the load unusable."""
    script, outcome, detail = BAD[case]
    result = run_load(serve(lambda *_: script).target(), ask(1), one())
    assert (result.samples[0].outcome, result.samples[0].detail) == (outcome, detail)
    assert summarise(result).usable is False


def test_a_stream_that_hangs_is_given_up(serve, ask):
    """Silence in mid-stream ends the request as stalled, not the run."""
    hang = [(0, HEAD + native(1)), (1.5, b"")]
    server = serve(lambda number, _: hang if number == 0 else GOOD)
    result = run_load(server.target(), ask(3), one(3, stall_s=0.3))
    assert [s.outcome for s in result.samples] == [Outcome.STALLED, Outcome.OK, Outcome.OK]
    assert result.samples[0].detail == "nothing arrived for 0.3 s"


def test_a_restart_under_load_is_said(serve, ask):
    """Connections lost among good answers make the load unusable and name the likely cause."""
    server = serve(lambda number, _: [(0, HEAD + native(1)), None] if number in (3, 4) else
                   [None] if number == 5 else GOOD)  # fmt: skip
    summary = summarise(run_load(server.target(), ask(12), one(12, users=2)))
    assert dict(summary.outcomes) == {"early-end": 2, "lost": 1, "ok": 9}
    assert "connections were lost under load: did the server restart?" in summary.findings
    assert summary.usable is False


def test_a_server_that_is_gone_ends_the_run(ask):
    """Nobody listening: the run is given up after its patience, with the count."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    from ddtree_ops.measure.client import Target

    result = run_load(Target(host="127.0.0.1", port=port), ask(500), one(500, users=2, gone_s=0.6))
    assert result.gave_up.startswith("no request succeeded for 0.6 s while ")
    assert {s.outcome for s in result.samples} == {Outcome.LOST}
    assert len(result.samples) < 20


def test_a_user_waits_as_long_as_retry_after_says(serve, ask):
    """429 with Retry-After holds that user back, instead of a storm of requests."""
    busy = whole(b"", "429 Too Many Requests", "retry-after: 0.4\r\n")
    result = run_load(serve(lambda number, _: busy if number == 0 else GOOD).target(), ask(2), one(2))
    assert [s.outcome for s in result.samples] == [Outcome.OVERLOADED, Outcome.OK]
    assert result.samples[1].start - result.samples[0].end >= 0.4


def test_the_api_key_is_sent_and_never_shown(serve, ask):
    """The key travels as a bearer token and is in no representation."""
    server = serve(lambda *_: GOOD)
    target = server.target(api_key="s3cret")
    run_load(target, ask(1), one())
    assert b"Authorization: Bearer s3cret\r\n" in server.heads[0]
    assert "s3cret" not in repr(target)


def test_input_ids_go_instead_of_the_text(serve):
    """A prompt that carries ids is sent by them on the native route."""
    server = serve(lambda *_: GOOD)
    run_load(server.target(), [Prompt(id="a", text="x", input_ids=(1, 2))], one())
    assert server.requests[0]["input_ids"] == [1, 2]
    assert "text" not in server.requests[0]


def test_a_long_prompt_is_sent_in_parts(serve):
    """A request larger than any socket buffer arrives whole."""
    server = serve(lambda *_: GOOD)
    text = "word " * 2_000_000
    result = run_load(server.target(), [Prompt(id="a", text=text)], one())
    assert result.samples[0].ok
    assert len(server.requests[0]["text"]) == len(text)


def test_no_garbage_is_collected_during_a_run(serve, ask):
    """The collector is off while bytes are stamped, and on again afterwards."""
    seen = []
    slow = stream(native(1), native(2, finish="stop"), gap=0.3)
    run_load(serve(lambda *_: slow).target(), ask(1), one(), on_tick=lambda _: seen.append(gc.isenabled()))
    assert set(seen) == {False}
    assert gc.isenabled()


def test_progress_counts_tokens_while_they_come(serve, ask):
    """The live view sees tokens of a stream that has not ended."""
    seen = []
    slow = stream(native(1), native(6), native(9, finish="stop"), gap=0.3)
    run_load(serve(lambda *_: slow).target(), ask(1), one(), on_tick=seen.append)
    assert any(0 < progress.tokens < 9 for progress in seen)
    assert all(progress.total == 1 for progress in seen)


def test_memory_is_bounded_by_reading_during_the_run(serve, ask):
    """Answers beyond the allowance are read early, and the result says so."""
    slow = stream(native(1), native(2, finish="stop"), gap=0.15)
    result = run_load(serve(lambda *_: slow).target(), ask(4), one(4, memory_mib=0))
    assert any("were read during the run to save memory" in finding for finding in result.findings)
    assert [s.tokens for s in result.samples] == [2] * 4


def test_an_empty_workload_and_an_impossible_load_are_refused(serve, ask):
    """Nothing to send, or nobody to send it, is a usage error."""
    target = serve(lambda *_: GOOD).target()
    with pytest.raises(UsageError, match="got 0 prompts"):
        run_load(target, [], one())
    with pytest.raises(UsageError, match="expected more than 0"):
        run_load(target, ask(1), one(users=0))


def test_a_workload_that_is_too_short_is_said(serve, ask):
    """Fewer prompts than requests: all are sent, and a finding counts them."""
    result = run_load(serve(lambda *_: GOOD).target(), ask(2), one(5))
    assert result.findings == ("the workload had prompts for 2 of 5 requests",)


def test_an_address_that_does_not_resolve_is_unreachable(ask):
    """A name that nobody knows is an error for a person, not a traceback."""
    from ddtree_ops.measure.client import Target

    with pytest.raises(Unreachable, match="expected a server"):
        run_load(Target(host="no-such-host.invalid", port=1), ask(1), one())


def test_goodput_counts_the_requests_within_their_limits(serve, ask):
    """One slow request of four is not good."""
    slow = [(0.4, HEAD), *GOOD[1:]]
    result = run_load(serve(lambda number, _: slow if number == 1 else GOOD).target(), ask(4), one(4))
    summary = summarise(result, Limits(ttft_s=0.2))
    assert summary.goodput is not None
    assert summary.goodput * 4 == pytest.approx(summary.request_rate * 3)


def test_events_may_be_separated_by_crlf_and_carry_comments(serve, ask):
    """Servers that end lines with CR LF and send keep-alive comments are read as well."""
    body = b": ping\r\n\r\n" + b'data: {"text": "a", "meta_info": {"completion_tokens": 1}}\r\n\r\n'
    meta = b'{"completion_tokens": 2, "finish_reason": {"type": "stop"}}'
    last = b'data: {"text": "ab", "meta_info": ' + meta + b"}\r\n\r\n"
    server = serve(lambda *_: [(0, HEAD + chunk(body)), (0.05, chunk(last) + END)])
    sample = run_load(server.target(), ask(1), one()).samples[0]
    assert (sample.outcome, [count for _, count in sample.arrivals]) == (Outcome.OK, [1, 2])
    assert sample.decode == pytest.approx(0.05, abs=0.03)


@pytest.fixture
def stamped():
    """Two ends of a connection; what the second one gets is stamped, as soon as the kernel has begun to.

    It begins a while after the first socket on a machine asks for it, and until then stamps what is read.
    """
    if sys.platform != "linux":
        pytest.skip("only Linux stamps what arrives")
    with socket.create_server(("127.0.0.1", 0)) as server:
        far, near = socket.create_connection(server.getsockname()), server.accept()[0]
    with near, far:
        ask_for_stamps(near)
        for _ in range(100):
            far.send(b"x")
            time.sleep(0.05)
            (arrivals := Arrivals()).begin()
            if arrivals.receive(near, 10)[1] < arrivals.now - 40_000_000:
                break
        yield far, near


def test_a_client_that_comes_late_does_not_stamp_late(serve, stamped):
    """The response comes after a few milliseconds, and is read a third of a second later."""
    target = serve(lambda *_: [(0.0, b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nab")]).target()
    done: list[Exchange] = []
    with Reactor(target.host, target.port, done.append) as reactor:
        exchange = Exchange(0, "", b"POST / HTTP/1.1\r\ncontent-length: 2\r\n\r\n{}", due=0)
        reactor.start(exchange)
        while not exchange.sent:
            reactor.turn(1.0)
        time.sleep(0.3)
        while not done:
            reactor.turn(1.0)
    late = (time.perf_counter_ns() - exchange.sent) / 1e9
    assert (exchange.ended - exchange.sent) / 1e9 < late / 2
    assert exchange.sent < exchange.stamps[0] == exchange.ended


def test_a_clock_that_is_set_meanwhile_moves_no_stamp(stamped, monkeypatch):
    far, near = stamped
    arrivals = Arrivals()
    far.send(b"x")
    monkeypatch.setattr(time, "time_ns", lambda wall=time.time_ns: wall() + 3_600_000_000_000)
    arrivals.begin()
    assert arrivals.receive(near, 10) == (b"x", arrivals.now)


def test_a_reader_who_is_interrupted_keeps_the_kernels_stamps(stamped, monkeypatch):
    """The process loses its core between two looks at two clocks."""
    far, near = stamped
    arrivals, real, waits = Arrivals(), time.time_ns, [0.02, 0.02]

    def interrupted():
        if waits:
            time.sleep(waits.pop())
        return real()

    sent = time.perf_counter_ns()
    far.send(b"x")
    time.sleep(0.2)
    monkeypatch.setattr(time, "time_ns", interrupted)
    arrivals.begin()
    stamp = arrivals.receive(near, 10)[1]
    assert abs(stamp - sent) < (arrivals.now - sent) / 2
    assert not waits
