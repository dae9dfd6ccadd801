"""A staged sglang of two files, runners in this process, and engines in processes of their own."""

from __future__ import annotations

import http.client
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from pathlib import Path
from typing import Any

os.environ.setdefault(
    "OMP_NUM_THREADS", "1"
)  # several threads on matrices this small only wait for each other

import numpy as np
import pytest
from ruamel.yaml import YAML

from ddtree_ops.lab import reference
from ddtree_ops.lab.ports import free_port
from ddtree_ops.lab.reference.faults import Faults
from ddtree_ops.lab.reference.request import Request, Sampling
from ddtree_ops.lab.reference.runner import Runner
from ddtree_ops.lab.reference.server_args import ServerArgs

PACKAGE = Path(reference.__file__).parent
TARGET, DRAFT = PACKAGE / "models/target", PACKAGE / "models/draft"
SMOKE = YAML(typ="safe").load((PACKAGE.parents[1] / "checks/smoke.yaml").read_text())["prompts"]

STOCK = "model_runner.server_args.speculative_num_draft_tokens"
BUDGET = 'getattr(model_runner.server_args, "speculative_ddtree_budget", None)'
PATCHED = f"({STOCK} if model_runner.is_draft_worker or not {BUDGET} else {BUDGET} + 1)"
BACKEND = """
class TritonAttnBackend:
    def __init__(self, model_runner, skip_prefill=False):
        from sglang.srt.layers.attention.triton_ops.extend_attention import extend_attention_fwd

        self.skip_prefill = skip_prefill
        self.num_draft_tokens = {width}
        self.speculative_num_steps = model_runner.server_args.speculative_num_steps
"""


def prompt_text(name: str) -> str:
    """The user message of a smoke prompt."""
    prompt = SMOKE[name]
    context = f"{prompt['context'].rstrip()}\n\n" if "context" in prompt else ""
    return f"{context}{prompt['text']}"


@pytest.fixture(scope="session")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Makes a directory for sys.path whose sglang sets the width to an expression."""

    def make(width: str) -> Path:
        site = tmp_path_factory.mktemp("site")
        file = site / "sglang/srt/layers/attention/triton_backend.py"
        file.parent.mkdir(parents=True)
        (site / "sglang/__init__.py").write_text("raise RuntimeError('the engine must not import sglang')\n")
        file.write_text(BACKEND.format(width=width))
        return site

    return make


class Bench:
    """One runner without its server: answers prompts in one batch."""

    def __init__(self, runner: Runner) -> None:
        self.runner = runner

    def ask(
        self, prompts: Sequence[str], *, tokens: int = 120, temperature: float = 0.0, seed: int = 0
    ) -> list[Request]:
        """Finished requests for user messages that run together."""
        encode, chat = self.runner.tokenizer.encode, self.runner.tokenizer.chat
        return self.ask_ids(
            [encode(chat([("user", prompt)])) for prompt in prompts],
            tokens=tokens,
            temperature=temperature,
            seed=seed,
        )

    def ask_ids(
        self, prompts: Sequence[list[int]], *, tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> list[Request]:
        """The same for token ids."""
        sampling = Sampling(temperature=temperature, max_new_tokens=tokens)
        requests = [
            Request(rid=str(n), prompt=ids, sampling=sampling, rng=np.random.default_rng([seed, n]))
            for n, ids in enumerate(prompts)
        ]
        self.runner.prefill(requests)
        while live := [request for request in requests if not request.finish]:
            step = self.runner.verify if self.runner.draft else self.runner.decode
            step(live)
        for request in requests:
            self.runner.finish(request)
        return requests

    def outputs(self, prompts: Sequence[str], **how: Any) -> list[list[int]]:
        """Output ids of `ask`."""
        return [request.output for request in self.ask(prompts, **how)]

    def flush(self) -> None:
        """Empties the prefix cache."""
        self.runner.cache.clear()


def accept_length(requests: Sequence[Request]) -> float:
    """Committed tokens a verify step, over all the requests."""
    return sum(len(r.output) for r in requests) / sum(r.verify_steps for r in requests)


MakeBench = Callable[..., Bench]
Alone = Callable[[str, int], list[int]]


@pytest.fixture
def bench(stage: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> MakeBench:
    """Makes a Bench: `bench(width, budget=16, topk=4, …)`; without a width, no drafter."""

    def make(
        width: str | None = None,
        *,
        budget: int | None = None,
        topk: int | None = None,
        graph: bool = True,
        faults: Sequence[str] = (),
        extra: Sequence[str] = (),
    ) -> Bench:
        monkeypatch.syspath_prepend(str(stage(width or STOCK)))
        argv = ["--model-path", str(TARGET), *extra]
        if width:
            argv += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(DRAFT)]
        argv += ["--speculative-ddtree-budget", str(budget)] if budget else []
        argv += ["--speculative-ddtree-topk-cap", str(topk)] if topk else []
        runner = Runner(ServerArgs.from_cli(argv), Faults(frozenset(faults)))
        runner.allocate()
        if graph:
            runner.capture()
        return Bench(runner)

    return make


@pytest.fixture(scope="session")
def alone(stage: Callable[[str], Path]) -> Callable[[str, int], list[int]]:
    """What the target writes greedily without a drafter: `alone(prompt, tokens)`."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(stage(STOCK)))
        runner = Runner(ServerArgs.from_cli(["--model-path", str(TARGET)]), Faults())
        runner.allocate()

    @cache
    def write(prompt: str, tokens: int) -> list[int]:
        return Bench(runner).ask([prompt], tokens=tokens)[0].output

    return write


class Process:
    """An engine in a process of its own, from a copy of the package and nothing else of ours."""

    def __init__(self, argv: list[str], env: dict[str, str], port: int, log: Path) -> None:
        self.port, self._log = port, log
        with log.open("wb") as out:
            self.popen = subprocess.Popen(argv, env=env, stdout=out, stderr=subprocess.STDOUT)

    @property
    def log(self) -> str:
        """What it printed so far."""
        return self._log.read_text()

    def wait_for(self, line: str, timeout: float = 60.0) -> None:
        """Until the line is in the log; fails when the process ends first."""
        deadline = time.monotonic() + timeout
        while line not in self.log:
            assert self.popen.poll() is None or line in self.log, self.log
            assert time.monotonic() < deadline, self.log
            time.sleep(0.02)

    def call(self, method: str, path: str, body: Any = None, *, raw: bytes | None = None) -> tuple[int, str]:
        """(status, text) of one HTTP request."""
        link = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        link.request(method, path, json.dumps(body) if raw is None and body is not None else raw)
        response = link.getresponse()
        text = response.read().decode()
        link.close()
        return response.status, text

    def json(self, method: str, path: str, body: Any = None) -> Any:
        """The JSON of a 200 answer."""
        status, text = self.call(method, path, body)
        assert status == 200, text
        return json.loads(text)

    def stop(self) -> None:
        """Kills it."""
        if self.popen.poll() is None:
            self.popen.send_signal(signal.SIGKILL)
        self.popen.wait()


Boot = Callable[..., Process]


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site-packages with the package alone in it, as `reference_engine`."""
    site = tmp_path_factory.mktemp("venv-site")
    shutil.copytree(PACKAGE, site / "reference_engine", ignore=shutil.ignore_patterns("__pycache__"))
    return site


def command(port: int, *, speculative: bool, extra: Sequence[str]) -> list[str]:
    """The command line of an engine."""
    argv = [sys.executable, "-m", "reference_engine.launch_server", "--model-path", str(TARGET)]
    argv += ["--port", str(port), "--served-model-name", "reference"]
    if speculative:
        argv += ["--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", str(DRAFT)]
    return [*argv, *extra]


@pytest.fixture(scope="module")
def boot(
    site: Path, stage: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Boot]:
    """Starts engines: `boot(*flags, width=…, fault=…)`; all are ended with the module."""
    started: list[Process] = []

    def make(
        *extra: str,
        width: str = PATCHED,
        fault: str = "",
        speculative: bool = True,
        port: int | None = None,
        staged: bool = True,
    ) -> Process:
        where = tmp_path_factory.mktemp("engine")
        path = f"{stage(width)}:{site}" if staged else str(site)
        env = {**os.environ, "PYTHONPATH": path, "REFERENCE_ENGINE_FAULT": fault, "PYTHONWARNINGS": "error"}
        port = port or free_port()
        argv = command(port, speculative=speculative, extra=extra)
        started.append(Process(argv, env, port, where / "log"))
        return started[-1]

    yield make
    for process in started:
        process.stop()
