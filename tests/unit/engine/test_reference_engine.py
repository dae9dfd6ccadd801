"""The client, the prompts and the checks against a real engine process, sound and with SGLang's stock width."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

import ddtree_ops.lab.reference as reference
from ddtree_ops.checks.garble import garble_verdict
from ddtree_ops.checks.smoke import smoke_plan
from ddtree_ops.checks.tokens import accept_verdict, rescore_prompts, rescore_verdict
from ddtree_ops.engine.chat_template import TEMPLATE_FILES, ChatTemplate
from ddtree_ops.engine.http import EngineClient, Sampling
from ddtree_ops.engine.phases import JournalLine, Load
from ddtree_ops.engine.prompts import Prompter, Way

MODELS = Path(reference.__file__).parent / "models"
STOCK = "model_runner.server_args.speculative_num_draft_tokens"
SOUND = f"{STOCK} if model_runner.is_draft_worker else model_runner.server_args.speculative_ddtree_budget + 1"
PROMPTS = {request.prompt.id: request.prompt.text for request in smoke_plan().requests}


class RealClock:
    def monotonic(self) -> float:
        return time.monotonic()

    def utc(self) -> str:
        return "2026-11-29T10:00:00Z"

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


class Running(NamedTuple):
    client: EngineClient
    log: Path


@contextmanager
def engine(base: Path, width: str) -> Iterator[Running]:
    """A reference engine on a staged sglang whose verify width is this expression."""
    attention = base / "sglang" / "srt" / "layers" / "attention"
    attention.mkdir(parents=True)
    (base / "sglang" / "__init__.py").write_text("")
    body = f"class TritonAttnBackend:\n    def __init__(self, model_runner):\n        self.num_draft_tokens = {width}\n"
    (attention / "triton_backend.py").write_text(body)
    shutil.copytree(reference.__path__[0], base / "reference_engine")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = (
        *(sys.executable, "-m", "reference_engine.launch_server", "--port", str(port), "--enable-metrics"),
        *("--random-seed", "1"),
        *("--model-path", str(MODELS / "target"), "--speculative-draft-model-path", str(MODELS / "draft")),
        *("--speculative-algorithm", "DFLASH"),
        *("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "4"),
    )
    log = base / "log"
    environment = {**os.environ, "PYTHONPATH": str(base), "OMP_NUM_THREADS": "1"}
    with log.open("w") as out, subprocess.Popen(argv, stdout=out, stderr=out, env=environment) as child:
        try:
            _until_ready(child, log)
            with EngineClient(base_url=f"http://127.0.0.1:{port}", clock=RealClock()) as client:
                yield Running(client, log)
        finally:
            child.terminate()


def _until_ready(child: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(600):
        if load(log).ready:
            return
        assert child.poll() is None, log.read_text()
        time.sleep(0.1)
    raise AssertionError(log.read_text())


def load(log: Path) -> Load:
    return Load.starting(0.0).follow(JournalLine(text=line, at=0.0) for line in log.read_text().splitlines())


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with engine(tmp_path_factory.mktemp("sound"), SOUND) as running:
        yield running


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with engine(tmp_path_factory.mktemp("stock"), STOCK) as running:
        yield running


def prompter(running: Running) -> Prompter:
    files = {name: (MODELS / "target" / name) for name in TEMPLATE_FILES}
    texts = {name: path.read_text() for name, path in files.items() if path.exists()}
    return Prompter(client=running.client, template=ChatTemplate.from_files(texts))


def test_its_journal_reads_as_a_load_with_a_drafter(sound: Running) -> None:
    seen = load(sound.log)
    labels = [span.label for span in seen.spans]
    assert (labels[0], labels[-1], seen.fatal) == ("start", "ready", None)
    assert {"weights", "drafter weights", "warm-up"} <= set(labels)
    assert seen.facts["block size"] == "8"


def test_every_route_of_the_client_is_answered(sound: Running) -> None:
    client = sound.client
    assert client.health()
    assert len(client.models()) == 1
    assert client.server_info().version is not None
    ids = client.tokenize("The ocean wakes")
    assert client.detokenize(ids) == "The ocean wakes"
    answer = client.generate(ids, Sampling(max_tokens=8))
    assert len(answer.output_ids) == answer.completion_tokens
    assert answer.accept_length is not None
    client.flush_cache()
    assert client.metrics()


def test_its_prompts_go_through_its_own_template(sound: Running) -> None:
    prompt = prompter(sound).ids(PROMPTS["poem"])
    assert (prompt.way, prompt.note) == (Way.TEMPLATE, "")


@pytest.mark.parametrize("name", ["poem", "quicksort"])
def test_a_sound_engine_is_what_its_prefill_says(sound: Running, name: str) -> None:
    ids = prompter(sound).ids(PROMPTS[name]).ids
    answer = sound.client.generate(ids, Sampling(max_tokens=64))
    sound.client.flush_cache()
    prefill = sound.client.generate_batch(rescore_prompts(ids, answer.output_ids, 48), Sampling(max_tokens=1))
    verdict = rescore_verdict(answer.output_ids, [each.output_ids[0] for each in prefill])
    assert (verdict.passed, verdict.checked) == (True, 48)
    assert accept_verdict([answer]).passed


@pytest.mark.parametrize("temperature", [0.0, 0.6, 1.0])
def test_a_sound_engine_writes_no_garble(sound: Running, temperature: float) -> None:
    asked = prompter(sound)
    sampling = Sampling(max_tokens=96, temperature=temperature)
    texts = {
        name: sound.client.generate(asked.ids(text).ids, sampling).text for name, text in PROMPTS.items()
    }
    verdicts = {name: garble_verdict(text, PROMPTS[name]) for name, text in texts.items()}
    assert {name: (texts[name], told.reasons) for name, told in verdicts.items() if told.garbled} == {}


@pytest.mark.parametrize("name", ["poem", "quicksort"])
def test_the_stock_width_is_found_by_its_text_and_by_its_tokens(stock: Running, name: str) -> None:
    ids = prompter(stock).ids(PROMPTS[name]).ids
    stock.client.flush_cache()
    answer = stock.client.generate(ids, Sampling(max_tokens=64))
    stock.client.flush_cache()
    prefill = stock.client.generate_batch(rescore_prompts(ids, answer.output_ids, 48), Sampling(max_tokens=1))
    verdict = rescore_verdict(answer.output_ids, [each.output_ids[0] for each in prefill])
    assert garble_verdict(answer.text, PROMPTS[name]).garbled
    assert verdict.wrong
