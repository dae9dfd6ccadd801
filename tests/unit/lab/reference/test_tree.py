"""Draft trees."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest

from ddtree_ops.lab.reference.tree import UNUSED, Tree, best_first, chain

RNG = np.random.default_rng(3)


def prefixes(tree: Tree) -> set[tuple[int, ...]]:
    """Every used row of a tree as the tokens from the root to it."""
    found: dict[int, tuple[int, ...]] = {0: ()}
    for row, parent in enumerate(tree.parents):
        if row and parent != UNUSED:
            found[row] = (*found[parent], int(tree.tokens[row]))
    return set(found.values()) - {()}


@pytest.mark.parametrize("budget", [1, 4, 9, 16])
@pytest.mark.parametrize("seed", range(5))
def test_the_tree_holds_the_likeliest_prefixes_of_all(budget: int, seed: int) -> None:
    logits = np.random.default_rng(seed).normal(size=(3, 5)).astype(np.float32) * 2
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    every = [p for depth in (1, 2, 3) for p in product(range(5), repeat=depth)]
    every.sort(key=lambda p: -sum(scores[d, t] for d, t in enumerate(p)))

    assert prefixes(best_first(7, logits, budget, None)) == set(every[:budget])


def test_a_tree_of_one_child_a_node_is_the_chain_and_padding() -> None:
    logits = RNG.normal(size=(7, 50)).astype(np.float32)
    tree, line = best_first(1, logits, 16, 1), chain(1, logits)

    assert tree.tokens[:8].tolist() == line.tokens.tolist()
    assert tree.parents == [*line.parents, *[UNUSED] * 9]


def test_the_cap_bounds_the_children_of_a_node() -> None:
    tree = best_first(1, np.zeros((7, 50), np.float32), 32, 3)

    assert max(tree.parents.count(parent) for parent in set(tree.parents) if parent > 0) <= 3
    assert tree.parents[1:].count(0) <= 3


def test_the_cap_may_exceed_the_vocabulary_that_there_is() -> None:
    assert len(best_first(1, np.zeros((2, 3), np.float32), 30, None).tokens) == 31


def test_a_row_sees_its_ancestors_and_itself_alone() -> None:
    tree = Tree(np.array([9, 1, 2, 3, 9]), [0, 0, 0, 1, UNUSED], np.array([0, 1, 1, 2, 0]))

    expected = [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], [1, 0, 1, 0, 0], [1, 1, 0, 1, 0], [0, 0, 0, 0, 1]]
    assert tree.visible().astype(int).tolist() == expected


@pytest.mark.parametrize(
    ("choices", "rows", "tokens"),
    [
        ({0: 5}, [0], [5]),
        ({0: 1, 1: 8}, [0, 1], [1, 8]),
        ({0: 1, 1: 3, 3: 4}, [0, 1, 3], [1, 3, 4]),
        ({0: 2, 2: 3}, [0, 2], [2, 3]),
    ],
)
def test_the_walk_goes_on_while_the_targets_choice_is_a_child(
    choices: dict[int, int], rows: list[int], tokens: list[int]
) -> None:
    tree = Tree(np.array([9, 1, 2, 3, 9]), [0, 0, 0, 1, UNUSED], np.array([0, 1, 1, 2, 0]))

    assert tree.walk(choices.__getitem__) == (rows, tokens)
