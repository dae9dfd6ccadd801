"""What a plain server does, a tree server must do alike: penalties, stops, streams, prefixes, retraction.

Every case runs on all prompts at once, so greedy and sampled requests share batches; ids, finish reasons
and texts are compared with the plain server's, which also runs twice, in other batches, as a control for
rounding. Requests that must be refused are sent too.
"""

from __future__ import annotations

import argparse
import json
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from typing import Any

from engines import Cell, Server, add_arguments, batch, ids_of, setup_of, start, stop, wait
from matrix import first_difference
from prompts import shipped

GREEDY = {"temperature": 0, "max_new_tokens": 96, "ignore_eos": True}
CASES: dict[str, dict[str, Any]] = {
    "greedy": {},
    "frequency": {"frequency_penalty": 0.6},
    "presence": {"presence_penalty": 0.8},
    "repetition": {"repetition_penalty": 1.3},
    "penalties together": {"frequency_penalty": 0.3, "presence_penalty": 0.3, "repetition_penalty": 1.1},
    "logit bias": {"logit_bias": {"40": 4.0, "11": -6.0}},
    "min_new_tokens": {"min_new_tokens": 40, "stop_token_ids": list(range(200, 320)), "ignore_eos": False},
    "stop token": {"stop_token_ids": list(range(200, 280)), "ignore_eos": False},
    "stop string": {"stop": ["self", "return"], "ignore_eos": False},
    "max 1": {"max_new_tokens": 1},
    "max 2": {"max_new_tokens": 2},
    "max 3": {"max_new_tokens": 3},
    "max 5": {"max_new_tokens": 5},
    "top-k 1 at temperature 0.9": {"temperature": 0.9, "top_k": 1},
    "top-p 0.001 at temperature 0.9": {"temperature": 0.9, "top_p": 0.001},
    "min-p 1.0 at temperature 0.9": {"temperature": 0.9, "min_p": 1.0},
}
SAMPLED = {"temperature": 1.0, "max_new_tokens": 64, "ignore_eos": True}
REFUSED: dict[str, dict[str, Any]] = {
    "log-probabilities": {"return_logprob": True},
    "regular expression": {"sampling_params": {"regex": "a+", "max_new_tokens": 4}},
    "JSON schema": {"sampling_params": {"json_schema": '{"type": "object"}', "max_new_tokens": 4}},
    "hidden states": {"return_hidden_states": True},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    add_arguments(parser)
    parser.add_argument("--trees", default="16x4,64x8")
    args = parser.parse_args()
    setup = setup_of(args)
    pair = next(iter(setup.pairs))
    small = ("--max-total-tokens", "3000")
    chunked = ("--chunked-prefill-size", "64")
    cells = [Cell(pair=pair, kind="plain")]
    for word in args.trees.split(","):
        budget, cap = (int(part) for part in word.split("x"))
        cells += [
            Cell(pair=pair, kind="tree", budget=budget, cap=cap, extra=extra)
            for extra in ((), small, chunked)
        ]
    servers = start(cells, setup, args.gpus, base_port=21000)
    try:
        up = wait(servers, args.up_s)
        plain, trees = up[0], up[1:]
        prompts = shipped(setup.pairs[pair])
        expected = _run(plain, prompts)
        sizes = [4] + [10] * len(
            trees
        )  # the plain server once more at another batch size: how much is rounding
        with ThreadPoolExecutor(len(up)) as pool:
            found = list(pool.map(_guarded, up, [prompts] * len(up), sizes))
        names = ["plain again, other batches", *(server.cell.name for server in trees)]
        results = {name: _compare(one, expected) for name, one in zip(names, found, strict=True)}
        Path(args.out).write_text(json.dumps(results, indent=1))
        _report(results)
    finally:
        stop(servers)


def _guarded(server: Server, prompts: list[list[int]], size: int = 10) -> dict[str, Any]:
    try:
        return {
            **_run(server, prompts, size),
            "refused": _refusals(server, prompts[0]),
            "retracted": _retractions(server),
        }
    except OSError as error:
        return {"error": f"{error!r}: {server.tail(40)}"}


def _run(server: Server, prompts: list[list[int]], size: int = 10) -> dict[str, Any]:
    """Each case's ids and finish reasons, half of the batch being sampled requests beside the greedy ones."""
    results: dict[str, Any] = {}
    for name, params in CASES.items():
        with ThreadPoolExecutor(1) as beside:
            noise = beside.submit(batch, server, prompts[:6], 6, **SAMPLED)
            replies = batch(server, prompts, size, **{**GREEDY, **params})
            noise.result()
        results[name] = [[ids_of(one), one["meta_info"]["finish_reason"]] for one in replies]
    greedy = [ids for ids, _ in results["greedy"]]
    again = [prompt + ids[:32] for prompt, ids in zip(prompts, greedy, strict=True)]
    results["prefix hit"] = [[ids_of(one), None] for one in batch(server, again, 16, **GREEDY)]
    server.flush()
    long = [[token for one in prompts[at:] + prompts[:at] for token in one][:700] for at in range(16)]
    results["long prompt"] = [[ids_of(one), None] for one in batch(server, long, 4, **GREEDY)]
    results["long output"] = [
        [ids_of(one), None] for one in batch(server, prompts, 16, **{**GREEDY, "max_new_tokens": 400})
    ]
    results["stream"] = [[_stream(server, prompt), None] for prompt in prompts[:4]]
    return results


def _stream(server: Server, prompt: list[int]) -> list[Any]:
    """The last text of a stream, whose chunks must only ever grow."""
    body = json.dumps({"input_ids": prompt, "sampling_params": GREEDY, "stream": True}).encode()
    url = f"http://127.0.0.1:{server.port}/generate"
    request = urllib.request.Request(url, data=body, headers={"Content-Type": "application/json"})
    texts = [""]
    with urllib.request.urlopen(request, timeout=120) as reply:
        for line in reply:
            word = line.decode().removeprefix("data:").strip()
            if word and word != "[DONE]":
                texts.append(json.loads(word)["text"])
    grows = all(after.startswith(before) for before, after in pairwise(texts))
    return [texts[-1], "grows" if grows else "shrinks"]


def _refusals(server: Server, prompt: list[int]) -> dict[str, str]:
    told = {}
    for name, body in REFUSED.items():
        try:
            reply = server.post(
                "/generate", {"input_ids": prompt, "sampling_params": {"max_new_tokens": 4}, **body}
            )
            told[name] = f"answered: {json.dumps(reply)[:300]}"
        except urllib.error.HTTPError as error:
            told[name] = f"{error.code}: {error.read().decode()[:300]}"
    return told


def _retractions(server: Server) -> int:
    return sum("Retract requests" in line or "retract" in line.lower() for line in _lines(server))


def _lines(server: Server) -> list[str]:
    return [
        line for line in server.log.read_text(errors="replace").splitlines() if "server_args=" not in line
    ]


def _compare(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    if "error" in found:
        return found
    lines: dict[str, Any] = {key: found[key] for key in ("refused", "retracted")}
    for name, wanted in expected.items():
        odd = []
        for index, ((ids, reason), (other, why)) in enumerate(zip(found[name], wanted, strict=True)):
            if ids != other or reason != why:
                odd.append(f"{index}@{first_difference(ids, other)} {'' if reason == why else (reason, why)}")
        lines[name] = f"{len(wanted) - len(odd)}/{len(wanted)} {' '.join(odd)}"
    return lines


def _report(results: dict[str, Any]) -> None:
    for server, lines in results.items():
        print(f"## {server}")
        for name, line in lines.items():
            print(f"- {name}: {line if isinstance(line, str) else json.dumps(line)}")


if __name__ == "__main__":
    main()
