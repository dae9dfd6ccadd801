"""The life of the process: flags, load, bind, warm-up, serve, drain, with SGLang's lines at each."""

from __future__ import annotations

import http.client
import importlib.metadata
import json
import os
import resource
import signal
import sys
import threading
import time
import traceback
from collections.abc import Sequence

from . import log
from .engine import Engine
from .faults import Faults
from .runner import Runner
from .scheduler import HEALTH_RID
from .server_args import ServerArgs
from .web import Server

MEMORY_GB = 24.0  # of the GPU that there is not


def launch(argv: Sequence[str]) -> None:
    """Runs an engine until it is told to stop; never returns normally."""
    args = ServerArgs.from_cli(argv)
    log.configure(args.log_level)
    log.engine.info("server_args=%s", args)
    faults = Faults.planted()
    try:
        runner = load(args, faults)
    except Exception:  # whatever it is, the load has failed, and the log says of what
        log.engine.error("Scheduler hit an exception: %s", traceback.format_exc())
        log.engine.error("Received sigquit from a child process. It usually means the child failed.")
        _kill_self()
    engine = Engine(runner, _version())
    server = _bind(engine)
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda number, _: _on_term(engine, stop, number))
    signal.signal(signal.SIGINT, lambda *_: stop.set())
    engine.scheduler.start()
    threading.Thread(target=server.serve_forever, daemon=True).start()
    threading.Thread(target=_warm_up, args=(engine, faults), daemon=True).start()
    stop.wait()
    _drain(engine)


def load(args: ServerArgs, faults: Faults) -> Runner:
    """A runner with weights, pool and graphs."""
    log.engine.info("Init torch distributed begin.")
    log.engine.info("Init torch distributed ends. elapsed=0.00 s, mem usage=0.00 GB")
    log.engine.info("Load weight begin. avail mem=%.2f GB", _free())
    tic = time.perf_counter()
    _act_up(faults)
    runner = Runner(args, faults)
    took = time.perf_counter() - tic
    _log_loaded(took, "ReferenceForCausalLM")
    if runner.draft:
        log.engine.info("Load weight begin. avail mem=%.2f GB", _free())
        _log_loaded(0.0, "ReferenceDFlashDraft")
    if "oom" in faults or float(args.mem_fraction_static or 0) <= 0.01:
        raise RuntimeError(
            "Not enough memory. Please try to increase --mem-fraction-static. "
            f"Current value: mem_fraction_static={args.mem_fraction_static}"
        )
    runner.allocate()
    size = sum(layer.nbytes for layer in runner.pool.layers) / 2**31
    log.engine.info(
        "KV Cache is allocated. #tokens: %d, K size: %.2f GB, V size: %.2f GB", runner.pool.size, size, size
    )
    log.engine.info("Memory pool end. avail mem=%.2f GB", _free())
    _capture(runner)
    _log_speculation(runner)
    log.engine.info(
        "max_total_num_tokens=%d, chunked_prefill_size=%s, max_prefill_tokens=16384, "
        "max_running_requests=%s, context_len=%s, available_gpu_mem=%.2f GB",
        *(
            runner.pool.size,
            args.chunked_prefill_size,
            args.max_running_requests,
            args.context_length,
            _free(),
        ),
    )
    return runner


def _act_up(faults: Faults) -> None:
    time.sleep(faults.slow_load)
    if "crash-at-load" in faults:
        raise RuntimeError("CUDA error: no kernel image is available for execution on the device")
    while "hang" in faults:
        time.sleep(3600)


def _log_loaded(seconds: float, kind: str) -> None:
    log.engine.info(
        "Load weight end. elapsed=%.2f s, type=%s, avail mem=%.2f GB, mem usage=0.01 GB.",
        seconds,
        kind,
        _free(),
    )


def _capture(runner: Runner) -> None:
    if runner.args.disable_cuda_graph:
        return
    log.engine.info(
        "Capture cuda graph begin. This can take up to several minutes. avail mem=%.2f GB", _free()
    )
    tic = time.perf_counter()
    log.engine.info("Capture cuda graph bs %s", list(range(1, int(runner.args.cuda_graph_max_bs or 1) + 1)))
    runner.capture()
    log.engine.info(
        "Capture cuda graph end. Time elapsed: %.2f s. mem usage=0.01 GB. avail mem=%.2f GB.",
        *(time.perf_counter() - tic, _free()),
    )


def _log_speculation(runner: Runner) -> None:
    args = runner.args
    if not runner.draft:
        return
    log.engine.info(
        "Initialized DFLASH draft runner. attention_backend=%s, model=ReferenceDFlashDraft, block_size=%s, "
        "draft_window_size=None, compact_cache=False",
        *(args.speculative_draft_attention_backend or args.attention_backend, runner.block),
    )
    if args.speculative_ddtree_budget is not None:
        log.engine.info(
            "DDTree ready. budget=%d, topk_cap=%s, verify rows=%d",
            *(args.speculative_ddtree_budget, args.speculative_ddtree_topk_cap, runner.rows),
        )


def _bind(engine: Engine) -> Server:
    log.http.info("Started server process [%d]", os.getpid())
    log.http.info("Waiting for application startup.")
    try:
        server = Server(engine)
    except OSError as taken:
        address = (engine.args.host, engine.args.port)
        reason = os.strerror(taken.errno or 0).lower()
        text = f"[Errno {taken.errno}] error while attempting to bind on address {address}: {reason}"
        log.http.error(text)
        sys.exit(1)
    log.http.info("Application startup complete.")
    log.http.info("Uvicorn running on http://%s:%d (Press CTRL+C to quit)", *server.server_address[:2])
    return server


def _warm_up(engine: Engine, faults: Faults) -> None:
    """One completion through the front door, then the line that says the server is ready."""
    if not engine.args.skip_server_warmup:
        host = "127.0.0.1" if engine.args.host in ("0.0.0.0", "::", "") else engine.args.host
        link = http.client.HTTPConnection(host, engine.args.port, timeout=600)
        params = {"temperature": 0, "max_new_tokens": 8}
        text, rid = "The capital city of France is", f"{HEALTH_RID}_WARM_UP"
        body = json.dumps({"text": text, "sampling_params": params, "rid": rid})
        key = {"Authorization": f"Bearer {engine.args.api_key}"} if engine.args.api_key else {}
        link.request("POST", "/generate", body, key)
        link.getresponse().read()
        link.close()
    if "hang-serving" in faults:
        engine.scheduler.silent.set()
    engine.ready = True
    log.engine.info("The server is fired up and ready to roll!")


def _on_term(engine: Engine, stop: threading.Event, number: int) -> None:
    log.engine.warning(
        "SIGTERM received. signum=%d frame=None. Draining requests and shutting down...", number
    )
    engine.draining = True
    stop.set()


def _drain(engine: Engine) -> None:
    while True:
        scheduler = engine.scheduler
        remaining = [request.rid for request in (*scheduler.running, *scheduler.waiting)]
        log.engine.info(
            "Gracefully exiting... Remaining number of requests %d. Remaining requests remaining_rids=%s.",
            *(len(remaining), remaining),
        )
        if not remaining or engine.unhealthy:
            _kill_self()
        time.sleep(0.5)


def _kill_self() -> None:
    sys.stdout.flush()
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(60)


def _free() -> float:
    return MEMORY_GB - resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def _version() -> str:
    try:
        return importlib.metadata.version("sglang")
    except importlib.metadata.PackageNotFoundError:
        return "0.5.11"
