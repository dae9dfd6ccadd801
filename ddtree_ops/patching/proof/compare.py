"""A pass against float64: every row of every request, unwritten ones told apart from wrong ones."""

from __future__ import annotations

import torch

from .attention import Engine, Seen, Tensors, draw, run
from .cases import Case
from .outcome import Verdict, judged
from .picture import Layout

# Relative error of a row over all its heads; what rounding of the inputs' type explains, with room.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}

REFUSALS = (ValueError, RuntimeError, AssertionError, IndexError)


def verdict(engine: Engine, case: Case) -> Verdict:
    """Runs one case. An exception of the tree's own code is a refusal, and is kept with its words."""
    tensors = draw(case, engine)
    try:
        seen = run(engine, case, tensors)
    except REFUSALS as error:
        return refusal(case, error)
    return compared(case, seen, reference(case, tensors), TOLERANCE[engine.dtype])


def refusal(case: Case, error: Exception) -> Verdict:
    """The tree's own code would not run the pass: none of its rows was written."""
    words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
    return Verdict(case=case, rows=case.rows, wrong=case.rows, unwritten=case.rows, worst=0.0, error=words)


def compared(case: Case, seen: Seen, expected: torch.Tensor, tolerance: float) -> Verdict:
    """Row by row: NaN in a poisoned row means that the kernel never wrote it."""
    found = errors(seen.output, expected.cpu())
    if all(error is not None and error <= tolerance for error in found):
        return Verdict(
            case=case, rows=case.rows, wrong=0, unwritten=0, worst=max(error or 0.0 for error in found)
        )
    layout = Layout(seen.rows_at, seen.mask_at, seen.longest, seen.mask.int().tolist())
    return judged(case, layout, seen.held, found, tolerance)


def errors(output: torch.Tensor, expected: torch.Tensor) -> list[float | None]:
    """Each row's relative error; None where nothing was written."""
    got = output.double().flatten(1)
    want = expected.flatten(1)
    written = ~got.isnan().all(1)
    relative = (got - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-9)
    return [float(error) if there else None for error, there in zip(relative, written, strict=True)]


def reference(case: Case, tensors: Tensors) -> torch.Tensor:
    """Attention of every row over its prefix and ancestors, in float64 where the tensors are."""
    heads, width = case.heads, case.width
    mask = tensors.mask
    slots, query = tensors.slots.long(), tensors.query.double()
    pools, own = (tensors.pool_key, tensors.pool_value), (tensors.key, tensors.value)
    parts, at = [], 0
    for request, prefix in enumerate(case.prefixes):
        rows = slice(request * width, (request + 1) * width)
        keys, values = (
            torch.cat([pool[slots[request + 1, :prefix]], new[rows]])
            .double()
            .repeat_interleave(heads.group, 1)
            for pool, new in zip(pools, own, strict=True)
        )
        size = width * (prefix + width)
        allowed = mask[at : at + size].view(1, width, prefix + width)
        at += size
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * heads.key**-0.5
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(parts)
