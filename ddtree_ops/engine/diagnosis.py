"""What an engine's log says about why it died, in an operator's words with the next thing to try."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A cause of death; `rank` orders causes, the smaller being the more telling."""

    what: str
    message: str
    hint: str
    line: str  # the log line that gave it away
    rank: int
    fatal: bool  # the line alone means that this engine will not serve


@dataclass(frozen=True, slots=True)
class _Sign:
    pattern: re.Pattern[str]
    what: str
    message: str  # may use the pattern's named groups
    hint: str
    fatal: bool


def diagnose(line: str) -> Diagnosis | None:
    """The most telling sign of failure in one log line, or None; fatal when any sign in it is."""
    found = [(rank, sign, match) for rank, sign in enumerate(_SIGNS) if (match := sign.pattern.search(line))]
    if not found or _REQUEST_LOG.search(line):
        return None
    rank, sign, match = found[0]
    said = {name: text.strip() for name, text in match.groupdict("").items()}
    return Diagnosis(
        what=sign.what,
        message=" ".join(sign.message.format(**said).split()),
        hint=sign.hint,
        line=line.strip(),
        rank=rank,
        fatal=any(other.fatal for _, other, _ in found),
    )


def explain(lines: Iterable[str]) -> Diagnosis | None:
    """The most telling sign in a dead engine's last lines; of equals the first, as others follow from it."""
    found = [diagnosis for line in lines if (diagnosis := diagnose(line)) is not None]
    return min(found, key=lambda diagnosis: diagnosis.rank, default=None)


_REQUEST_LOG = re.compile(r"(?:Receive|Finish): obj=")  # --log-requests: users may write anything


def _sign(pattern: str, what: str, message: str, hint: str, *, fatal: bool = False) -> _Sign:
    return _Sign(re.compile(pattern), what, message, hint, fatal)


_MEMORY = (
    "deploy again with a smaller --budget or graph_max_batch, with --no-cuda-graph, or with more memory free"
)

# Most telling first. Causes stand in tracebacks, after the fatal line that announces them; libraries print
# such lines too and go on, so a cause alone does not mean death.
_SIGNS = (
    _sign(
        r"error: unrecognized arguments: (?P<flags>.+)",
        "flags",
        "this SGLang does not know {flags}",
        "take the words out of extra_flags, or apply the patch set that adds them with --patches",
        fatal=True,
    ),
    _sign(
        r"error: argument (?P<flag>[^:]+): (?P<why>.+)",
        "flags",
        "this SGLang rejects {flag}: {why}",
        "correct the profile; ddtree-ops probe shows the node's SGLang",
        fatal=True,
    ),
    _sign(
        r"(?:error while attempting to bind on address (?P<address>\([^)]*\))|Address already in use"
        r"|[Pp]ort (?:is )?already in use)",
        "port",
        "its port is taken by another process {address}",
        "ddtree-ops probe shows who listens; stop it or give the profile another port",
        fatal=True,
    ),
    _sign(
        r"undefined symbol: (?P<symbol>\S+)",
        "kernels",
        "a compiled kernel does not fit this torch or driver (undefined symbol {symbol})",
        "reinstall sgl-kernel for the venv's torch; ddtree-ops probe shows both versions",
    ),
    _sign(
        r"no kernel image is available for execution",
        "kernels",
        "the kernels were not built for this GPU's architecture",
        "install a torch and sgl-kernel built for it; ddtree-ops probe shows the architecture",
    ),
    _sign(
        r"(?:ModuleNotFoundError: )?No module named '?(?P<module>[\w.]+)",
        "venv",
        "the venv lacks the Python module {module}",
        "install it in the node's venv, or correct the profile's venv or launcher",
    ),
    _sign(
        r"Not enough memory\. Please try to increase --mem-fraction-static",
        "memory",
        "no memory is left for the KV cache after the weights",
        _MEMORY + "; or raise --mem-fraction-static in extra_flags",
        fatal=True,
    ),
    _sign(
        r"CUDA out of memory|OutOfMemoryError|CUDA error: out of memory|cudaErrorMemoryAllocation",
        "memory",
        "the GPU ran out of memory",
        _MEMORY,
    ),
    _sign(
        r"CUBLAS_STATUS_(?P<status>\w+)",
        "kernels",
        "cuBLAS failed with {status}, as happens when batch × (budget + 1) grows large",
        "deploy again with a smaller --budget; ddtree-ops isolate tells tree, graphs and drafter apart",
    ),
    _sign(
        r"illegal memory access was encountered|CUDA error: misaligned address|cudaErrorIllegalAddress",
        "kernels",
        "a kernel read or wrote outside its memory, as verify buffers of the wrong width make it do",
        "ddtree-ops isolate tells tree, graphs and drafter apart; --no-cuda-graph often helps",
    ),
    _sign(
        r"device-side assert triggered",
        "kernels",
        "a kernel met an index out of range",
        "ddtree-ops isolate tells tree, graphs and drafter apart",
    ),
    _sign(
        r"NCCL error|ncclSystemError|ncclUnhandledCudaError|ncclInternalError",
        "nccl",
        "the GPUs cannot talk to each other over NCCL",
        "set NCCL_DEBUG=INFO in the profile's environment and read ddtree-ops logs",
    ),
    _sign(
        r"(?:is not a local folder and is not a valid model identifier|Can't load the configuration of"
        r"|does not appear to have a file named|No such file or directory: '?(?P<path>[^']+))",
        "files",
        "a model file is missing {path}",
        "correct the profile's model or drafter; both are paths on the node",
    ),
    _sign(
        r"SafetensorError|Error while deserializing header",
        "files",
        "a weights file is damaged or cut short",
        "compare the model's files with their source and copy the damaged one again",
    ),
    _sign(
        r"No space left on device",
        "disk",
        "a disk of the node is full",
        "free space (compile caches lie in the home directory and /tmp) and deploy again",
    ),
    _sign(
        r"exit code: -9",
        "memory",
        "a worker process was killed, most often by the kernel for using too much host memory",
        "see `dmesg` on the node for the out-of-memory killer",
        fatal=True,
    ),
    _sign(
        r"Capture (?P<kind>\w+) graph failed: (?P<why>.*)",
        "graphs",
        "capturing {kind} graphs failed: {why}",
        "deploy again with --no-cuda-graph or a smaller graph_max_batch",
        fatal=True,
    ),
    _sign(
        r"[Ww]atchdog timeout",
        "watchdog",
        "the scheduler made no progress and its watchdog ended it",
        "ddtree-ops logs shows what it did last; raise --watchdog-timeout only if that was legitimate work",
        fatal=True,
    ),
    _sign(
        r"Initialization failed\. warmup error",
        "warm-up",
        "the engine loaded, but its first request failed",
        "ddtree-ops logs shows the request's traceback",
        fatal=True,
    ),
    _sign(
        r"(?<![\w.])(?P<kind>(?:[A-Za-z_]\w*\.)*[A-Z]\w*(?:Error|Exception)): (?P<why>.+)",
        "engine",
        "{kind}: {why}",
        "ddtree-ops logs shows the whole traceback",
    ),
    _sign(
        r"Scheduler hit an exception",
        "engine",
        "its scheduler died of an exception",
        "ddtree-ops logs shows the whole traceback",
        fatal=True,
    ),
    _sign(
        r"SIGQUIT received|scheduler died during initialization",
        "engine",
        "one of its processes failed and took the others down",
        "ddtree-ops logs shows which",
        fatal=True,
    ),
    _sign(
        r"Initialization failed\.",
        "engine",
        "one of its processes failed while loading",
        "ddtree-ops logs shows which",
        fatal=True,
    ),
)
