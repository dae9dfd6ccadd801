"""Attention over the key/value pool: plain for prefill and decode, flat-masked for blocks and trees."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Floats, Ints

Mask = NDArray[np.bool_]
ROWS = 256  # of a prefill that are scored at once


@dataclass(frozen=True, slots=True)
class FlatExtend:
    """What a backend hands the extend kernel for one pass; offsets are in flat rows and mask bits.

    Request r owns rows qo_indptr[r]:qo_indptr[r + 1]; its mask bits begin at mask_indptr[r], one row of
    (prefix + rows) bits after the other. The kernel believes these numbers: wrong ones make it write the
    wrong rows and read the wrong bits, as on a GPU.
    """

    qo_indptr: Ints
    mask_indptr: Ints
    mask: Mask | None  # None: all rows of a request see each other

    @classmethod
    def of(
        cls, width: int, prefixes: Sequence[int], mask: Mask | None, *, shared: bool = False
    ) -> FlatExtend:
        """The offsets that follow from one width for all requests; `shared` plants equal mask offsets."""
        sizes = [0 if shared else width * (prefix + width) for prefix in prefixes]
        starts = np.concatenate([[0], np.cumsum(sizes)])
        return cls(np.arange(0, (len(prefixes) + 1) * width, width), starts, mask)


def softmax_attention(scores: Floats, values: Sequence[Floats]) -> Floats:
    """Softmax over the last axis of (heads, rows, keys), applied to values given in consecutive parts."""
    scores -= scores.max(-1, keepdims=True)
    np.exp(scores, out=scores)
    total = scores.sum(-1)
    at = 0
    out = np.zeros((*scores.shape[:2], values[0].shape[-1]), np.float32)
    for part in values:
        out += scores[:, :, at : at + len(part)] @ part.transpose(1, 0, 2)
        at += len(part)
    result: Floats = (out / total[:, :, None]).transpose(1, 0, 2)
    return result.reshape(len(result), -1)


def scores_of(q: Floats, keys: Floats) -> Floats:
    """(heads, rows, keys) from (rows, heads, size) and (keys, heads, size), scaled."""
    scaled: Floats = q.transpose(1, 0, 2) @ keys.transpose(1, 2, 0) * np.float32(q.shape[-1] ** -0.5)
    return scaled


def causal_attention(q: Floats, cached: Floats) -> Floats:
    """Rows are the last positions of `cached` (keys, 2, heads, size), each seeing what came before."""
    before = len(cached) - len(q)
    parts = [_causal_rows(q[at : at + ROWS], cached[: before + at + ROWS]) for at in range(0, len(q), ROWS)]
    return parts[0] if len(parts) == 1 else np.concatenate(parts)


def _causal_rows(q: Floats, cached: Floats) -> Floats:
    scores = scores_of(q, cached[:, 0])
    rows, keys = scores.shape[1:]
    if rows > 1:
        ahead = np.arange(keys) > np.arange(keys - rows, keys)[:, None]
        scores[:, ahead] = -np.inf
    return softmax_attention(scores, [cached[:, 1]])


def extend_attention(
    q: Floats, k: Floats, v: Floats, prefixes: Sequence[Floats], plan: FlatExtend, out: Floats
) -> None:
    """SGLang's extend kernel: writes the rows of `out` that the plan reaches, and no others."""
    for request, prefix in enumerate(prefixes):
        first = int(plan.qo_indptr[request])
        rows = slice(first, min(int(plan.qo_indptr[request + 1]), len(q)))
        if rows.stop <= first:
            continue
        scores = np.concatenate([scores_of(q[rows], prefix[:, 0]), scores_of(q[rows], k[rows])], -1)
        if plan.mask is not None:
            width = int(plan.qo_indptr[request + 1]) - first
            hidden = ~_mask_bits(plan, request, len(prefix), width)[: rows.stop - first, : rows.stop - first]
            scores[:, :, len(prefix) :][:, hidden] = -np.inf
        out[rows] = softmax_attention(scores, [prefix[:, 1], v[rows]])


def _mask_bits(plan: FlatExtend, request: int, prefix: int, width: int) -> Mask:
    assert plan.mask is not None
    lines = np.arange(width)[:, None] * (prefix + width)
    places = plan.mask_indptr[request] + lines + prefix + np.arange(width)
    bits: Mask = np.take(plan.mask, places, mode="wrap")
    return bits
