"""A pass against float64: every row of every request, unwritten ones told apart from wrong ones."""

from __future__ import annotations

import torch

from .attention import Engine, Seen, Tensors, draw, mask_of, run
from .cases import Case
from .outcome import Verdict, judged
from .picture import Layout

# Relative error of a row over all its heads; what rounding of the inputs' type explains, with room.
TOLERANCE = {torch.float32: 2e-4, torch.float16: 4e-3, torch.bfloat16: 2e-2}


def verdict(engine: Engine, case: Case) -> Verdict:
    """Runs one case. An exception of the tree's own code is a refusal, and is kept with its words."""
    tensors = draw(case, engine)
    try:
        seen = run(engine, case, tensors)
    except (ValueError, RuntimeError, AssertionError, IndexError) as error:
        words = f"{type(error).__name__}: {str(error).splitlines()[0] if str(error) else ''}"
        return Verdict(case=case, rows=case.rows, wrong=case.rows, unwritten=case.rows, worst=0.0, error=words)
    return compared(case, seen, reference(case, tensors), TOLERANCE[engine.dtype])


def compared(case: Case, seen: Seen, expected: torch.Tensor, tolerance: float) -> Verdict:
    """Row by row: NaN in a poisoned row means that the kernel never wrote it."""
    layout = Layout(seen.rows_at, seen.mask_at, seen.longest, seen.mask)
    return judged(case, layout, seen.held, errors(seen.output, expected), tolerance)


def errors(output: torch.Tensor, expected: torch.Tensor) -> list[float | None]:
    """Each row's relative error; None where nothing was written."""
    got = output.double().flatten(1)
    want = expected.flatten(1)
    written = ~got.isnan().all(1)
    relative = (got - want).norm(dim=1) / want.norm(dim=1).clamp_min(1e-9)
    return [float(error) if there else None for error, there in zip(relative, written)]


def reference(case: Case, tensors: Tensors) -> torch.Tensor:
    """Attention of every row over its prefix and ancestors, in float64 on the CPU."""
    heads, width = case.heads, case.width
    mask = mask_of(case)
    pools = (tensors.pool_key.double().cpu(), tensors.pool_value.double().cpu())
    own = (tensors.key.double().cpu(), tensors.value.double().cpu())
    slots, query = tensors.slots.long().cpu(), tensors.query.double().cpu()
    parts, at = [], 0
    for request, prefix in enumerate(case.prefixes):
        rows = slice(request * width, (request + 1) * width)
        keys, values = (
            torch.cat([pool[slots[request + 1, :prefix]], new[rows]]).repeat_interleave(heads.query // heads.kv, 1)
            for pool, new in zip(pools, own)
        )
        size = width * (prefix + width)
        allowed = mask[at : at + size].view(1, width, prefix + width)
        at += size
        scores = torch.einsum("qhd,khd->hqk", query[rows], keys) * heads.key**-0.5
        weights = scores.masked_fill(~allowed, float("-inf")).softmax(-1)
        parts.append(torch.einsum("hqk,khd->qhd", weights, values))
    return torch.cat(parts)
