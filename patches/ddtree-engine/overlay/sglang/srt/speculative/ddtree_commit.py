"""What a verify step leaves behind, as index lists computed on the host: kept rows, freed rows, positions.

The walk's result is the one thing a step reads back from the GPU; all that follows from it is worked out here
with numpy and sent to the GPU in one copy.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Walked:
    """The walk's result on the host, one row a request: rows walked, tokens taken, tokens committed, tree
    nodes.
    """

    committed: np.ndarray
    nodes: np.ndarray
    rows: np.ndarray
    tokens: np.ndarray


def read_walk(found: np.ndarray) -> Walked:
    """Names the columns of the walk's [requests, 2 + 2 × path] integers."""
    path = (found.shape[1] - 2) // 2
    return Walked(
        committed=found[:, 0], nodes=found[:, 1], rows=found[:, 2 : 2 + path], tokens=found[:, 2 + path :]
    )


@dataclass(frozen=True)
class Commit:
    """Flat indices into the verify pass's [requests × width] rows, and where the kept ones lie in their
    sequences.

    kept is in path order, request after request; freed is everything else; positions go with kept.
    """

    kept: np.ndarray
    freed: np.ndarray
    positions: np.ndarray


def plan(rows: np.ndarray, lengths: np.ndarray, seq_lens: np.ndarray, width: int) -> Commit:
    """Splits the verify pass's rows into the committed paths and the rest.

    rows: [requests, path], the rows walked; lengths: [requests], how many of them each request keeps (a
    request that ends inside its path keeps fewer than were walked); seq_lens: [requests], tokens before this
    step.
    """
    requests, path = rows.shape
    step = np.arange(path)
    keep = step[None, :] < lengths[:, None]
    flat = rows.astype(np.int64) + np.arange(requests, dtype=np.int64)[:, None] * width
    kept = flat[keep]
    rest = np.ones(requests * width, dtype=bool)
    rest[kept] = False
    positions = (seq_lens.astype(np.int64)[:, None] + step[None, :])[keep]
    return Commit(kept=kept, freed=np.flatnonzero(rest), positions=positions)
