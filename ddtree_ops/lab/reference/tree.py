"""Draft trees: built best-first from the drafter's marginals, walked by the target's own choices."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .model import Floats, Ints

ROOT = 0
UNUSED = -1  # parent of a padding row


@dataclass(frozen=True, slots=True)
class Tree:
    """Rows of one verify pass: row 0 is the last committed token, unused rows pad to the width."""

    tokens: Ints
    parents: list[int]  # of row 0: itself
    depths: Ints

    def visible(self) -> NDArray[np.bool_]:
        """(rows, rows): what each row may see of the others, its ancestors and itself."""
        rows = len(self.parents)
        seen = np.eye(rows, dtype=bool)
        for row in range(1, rows):
            if self.parents[row] != UNUSED:
                seen[row] |= seen[self.parents[row]]
        return seen

    def walk(self, choose: Callable[[int], int]) -> tuple[list[int], list[int]]:
        """(rows, tokens) committed: from the root, down while the target's choice at a row is its child."""
        child = {(parent, int(self.tokens[row])): row for row, parent in enumerate(self.parents) if row}
        rows, tokens = [ROOT], [choose(ROOT)]
        while (rows[-1], tokens[-1]) in child:
            rows.append(child[rows[-1], tokens[-1]])
            tokens.append(choose(rows[-1]))
        return rows, tokens


def chain(anchor: int, logits: Floats) -> Tree:
    """The drafter's likeliest token at each place, one after the other."""
    tokens = np.concatenate([[anchor], logits.argmax(1)])
    rows = len(tokens)
    return Tree(tokens, [0, *range(rows - 1)], np.arange(rows))


def best_first(anchor: int, logits: Floats, budget: int, cap: int | None) -> Tree:
    """The `budget` likeliest prefixes under independent places (arXiv 2604.12989), padded to budget + 1."""
    scores, tokens = _candidates(logits, min(cap or budget, budget, logits.shape[1]))
    depths = len(tokens)
    rows, parents, levels = [anchor], [ROOT], [0]
    heap = [(-scores[0][0], 0, ROOT, 0, 0)]  # (-log p, order, parent, depth, rank)
    order = 0
    while heap and len(rows) <= budget:
        cost, _, parent, depth, rank = heapq.heappop(heap)
        rows.append(tokens[depth][rank])
        parents.append(parent)
        levels.append(depth + 1)
        order += 2
        if rank + 1 < len(tokens[depth]):
            sibling = cost + scores[depth][rank] - scores[depth][rank + 1]
            heapq.heappush(heap, (sibling, order, parent, depth, rank + 1))
        if depth + 1 < depths:
            heapq.heappush(heap, (cost - scores[depth + 1][0], order + 1, len(rows) - 1, depth + 1, 0))
    padding = budget + 1 - len(rows)
    return Tree(
        np.array(rows + [anchor] * padding), parents + [UNUSED] * padding, np.array(levels + [0] * padding)
    )


def _candidates(logits: Floats, count: int) -> tuple[list[list[float]], list[list[int]]]:
    """(log probabilities, tokens) of the likeliest `count` tokens at each place, best first."""
    best = np.argpartition(logits, -count, axis=1)[:, -count:]
    values = np.take_along_axis(logits, best, 1)
    order = np.argsort(-values, axis=1, kind="stable")
    top = logits.max(1, keepdims=True)
    total = top + np.log(np.exp(logits - top).sum(1, keepdims=True))
    scores = np.take_along_axis(values, order, 1) - total
    return scores.tolist(), np.take_along_axis(best, order, 1).tolist()
