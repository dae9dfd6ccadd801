"""The proof on a node's own GPU: every budget, batch, head shape and mode, real CUDA graphs, times."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import triton

from . import attention, stage
from .attention import Engine, Tensors, Tree
from .cases import REAL, SMALL, Case, Heads, case
from .compare import REFUSALS, TOLERANCE, compared, reference, refusal, verdict
from .outcome import Tally, Verdict

REPLAYS = 3  # of one graph, each with other trees, prefixes and inputs
TIMED = 20
LONGEST = 300  # tokens of prefix


def document(
    trees: Sequence[Path],
    *,
    budgets: Sequence[int],
    batches: Sequence[int],
    block: int = 8,
    device: str = "cuda",
    dtypes: Sequence[str] = ("bfloat16", "float16"),
    seed: int = 0,
    graphs: bool = True,
) -> dict[str, Any]:
    """Verdicts over everything, and a line for each combination with its times in milliseconds.

    Without `graphs` only the eager pass is run.
    """
    tree, tally, lines = Tree(trees), Tally(), []
    shapes = [shape for shape, _ in (REAL if device == "cuda" else SMALL)]
    rng = random.Random(seed)
    for dtype in dtypes:
        for budget in budgets:
            engine = Engine(tree, block, budget, device, getattr(torch, dtype))
            for batch in batches:
                for heads in shapes:
                    found, times = _combination(engine, heads, batch, rng, graphs)
                    for one in found:
                        tally.add(one)
                    lines.append(_line(dtype, budget, batch, heads, found, times))
    return {**tally.document(), "lines": lines, **machine(device)}


def machine(device: str) -> dict[str, Any]:
    """Where it ran, and what it took of the GPU's memory (MiB)."""
    found: dict[str, Any] = {
        "torch": torch.__version__,
        "triton": triton.__version__,
        "device": "cpu, interpreted",
    }
    if device == "cuda":
        free, total = torch.cuda.mem_get_info()
        found |= {
            "device": torch.cuda.get_device_name(0),
            "capability": "sm_{}{}".format(*torch.cuda.get_device_capability(0)),
            "memory_mib": {
                "peak": torch.cuda.max_memory_allocated() >> 20,
                "free": free >> 20,
                "total": total >> 20,
            },
        }
    return found


def _combination(
    engine: Engine, heads: Heads, batch: int, rng: random.Random, graphs: bool
) -> tuple[list[Verdict], dict[str, float]]:
    """One eager pass; with `graphs` also one with capture's metadata, and replays of one graph."""
    first = case(rng, mode="eager", budget=engine.budget, heads=heads, batch=batch, longest=LONGEST)
    found = [verdict(engine, first)]
    times = {"eager": _timed_eager(engine, first)} if engine.device == "cuda" else {}
    if not graphs:
        return found, times
    found.append(verdict(engine, replace(first, mode="capture")))
    padded = replace(first, mode="replay", padded=batch % 2)
    try:
        for one, milliseconds in _replays(engine, padded, rng):
            found.append(one)
            times |= {"replay": milliseconds} if milliseconds else {}
    except REFUSALS as error:
        found.append(refusal(padded, error))
    return found, times


def _replays(engine: Engine, first: Case, rng: random.Random) -> Iterator[tuple[Verdict, float]]:
    """Verdict and time of each replay; on a CPU, which has no graphs, replay's metadata and the kernel."""
    cases = [_again(first, rng) for _ in range(REPLAYS)]
    if engine.device != "cuda":
        yield from ((verdict(engine, one), 0.0) for one in cases)
        return
    from . import graphs

    captured = graphs.capture(engine, first, _roomy(engine, first))
    for one in cases:
        tensors = _roomy(engine, one)
        seen = captured.replay(one, tensors)
        milliseconds = timed(captured.graph.replay)
        yield compared(one, seen, reference(one, tensors), TOLERANCE[engine.dtype]), milliseconds


def _again(first: Case, rng: random.Random) -> Case:
    """A pass of the same shapes with other trees, prefixes and inputs."""
    other = case(
        rng, mode="replay", budget=first.budget, heads=first.heads, batch=first.batch, longest=LONGEST
    )
    return replace(other, padded=first.padded)


def _roomy(engine: Engine, one: Case) -> Tensors:
    """Inputs whose pools have one size whatever the prefixes, as a graph's must."""
    tensors = attention.draw(one, engine)
    room = one.batch * LONGEST + 9
    for name in ("pool_key", "pool_value"):
        pool = getattr(tensors, name)
        whole = torch.zeros(room, *pool.shape[1:], dtype=pool.dtype, device=pool.device)
        whole[: len(pool)] = pool
        setattr(tensors, name, whole)
    return tensors


def _timed_eager(engine: Engine, one: Case) -> float:
    """Metadata and one layer."""
    tensors = attention.draw(one, engine)
    backend = stage.backend_of(engine, one, tensors)
    batch = stage.batch_of(engine, one, tensors, tensors.mask, tensors.lengths)
    given: dict[str, Any] = {}

    def step() -> None:
        backend.init_forward_metadata(batch)
        attention.poisoned_pass(engine, backend, one, tensors, batch, given)

    return timed(step)


def timed(step: Any) -> float:
    """Milliseconds of one step on the GPU, mean of some."""
    step()
    start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
    start.record()
    for _ in range(TIMED):
        step()
    end.record()
    torch.cuda.synchronize()
    return round(float(start.elapsed_time(end)) / TIMED, 4)


def _line(
    dtype: str, budget: int, batch: int, heads: Heads, found: Sequence[Verdict], times: dict[str, float]
) -> dict[str, Any]:
    return {
        "dtype": dtype,
        "budget": budget,
        "batch": batch,
        "heads": heads.name,
        "rows": sum(one.rows for one in found),
        "wrong_rows": sum(one.wrong for one in found),
        "unwritten_rows": sum(one.unwritten for one in found),
        "worst_error": max(one.worst for one in found),
        "refused": sorted({one.error for one in found if one.error}),
        "milliseconds": times,
    }
