from __future__ import annotations

import heapq
import itertools
from typing import Any

import pytest

from .overlay import load

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.proof
tree_module = load("ddtree_tree")


def marginals(requests: int, depth: int, ranks: int, seed: int, vocab: int = 40) -> tuple[Any, Any]:
    """Random marginals, each depth's likeliest candidates first."""
    draw = torch.Generator().manual_seed(seed)
    logits = torch.randn(requests, depth, vocab, generator=draw) * 2
    return torch.log_softmax(logits, -1).topk(ranks, -1)


def grown(requests: int, depth: int, ranks: int, budget: int, seed: int) -> tuple[Any, Any, Any]:
    logp, token = marginals(requests, depth, ranks, seed)
    root, start = torch.arange(requests) + 1000, torch.arange(requests) * 3 + 5
    return logp, token, tree_module.grow(logp, token, root, start, budget)


def prefixes(tree: Any, token: Any, request: int) -> list[tuple[int, ...]]:
    """Each node as its tokens from the first draft position on, in row order."""
    found = {0: ()}
    for row in range(1, tree.parent.shape[1]):
        parent = int(tree.parent[request, row])
        if parent >= 0:
            found[row] = (*found[parent], int(tree.token[request, row]))
    return [found[row] for row in sorted(found)][1:]


def likeliest(logp: Any, token: Any, budget: int) -> set[tuple[int, ...]]:
    """Brute force: every prefix of every length, scored, the best kept."""
    depth, ranks = logp.shape
    scored = []
    for length in range(1, depth + 1):
        for choice in itertools.product(range(ranks), repeat=length):
            score = sum(float(logp[at, rank]) for at, rank in enumerate(choice))
            scored.append((score, tuple(int(token[at, rank]) for at, rank in enumerate(choice))))
    return {ids for _, ids in sorted(scored, reverse=True)[:budget]}


def best_first(logp: Any, budget: int) -> list[tuple[int, ...]]:
    """The paper's heap, as ranks: take the likeliest, offer its next sibling and its first child."""
    depth, ranks = logp.shape
    heap = [(-float(logp[0, 0]), (0,))]
    taken = []
    while heap and len(taken) < budget:
        cost, choice = heapq.heappop(heap)
        taken.append(choice)
        at, rank = len(choice) - 1, choice[-1]
        if rank + 1 < ranks:
            above = cost + float(logp[at, rank])
            heapq.heappush(heap, (above - float(logp[at, rank + 1]), (*choice[:-1], rank + 1)))
        if at + 1 < depth:
            heapq.heappush(heap, (cost - float(logp[at + 1, 0]), (*choice, 0)))
    return taken


@pytest.mark.parametrize(
    ("depth", "ranks", "budget", "requests"),
    [(3, 4, 5, 500), (4, 3, 3, 800), (2, 4, 4, 400), (4, 2, 6, 200), (1, 4, 3, 200)],
)
def test_a_tree_holds_the_likeliest_prefixes(depth: int, ranks: int, budget: int, requests: int) -> None:
    logp, token, tree = grown(requests, depth, ranks, budget, seed=depth * 100 + budget)
    for request in range(requests):
        expected = likeliest(logp[request], token[request], budget)
        found = prefixes(tree, token, request)
        assert expected == set(found)
        assert len(found) == len(set(found))


@pytest.mark.parametrize(("ranks", "budget"), [(4, 16), (8, 64), (1, 16)])
def test_rows_come_in_the_order_of_the_paper_s_heap(ranks: int, budget: int) -> None:
    logp, token, tree = grown(4, 7, ranks, budget, seed=budget)
    for request in range(4):
        order = best_first(logp[request].double(), budget)
        expected = [tuple(int(token[request, at, r]) for at, r in enumerate(ids)) for ids in order]
        assert expected == prefixes(tree, token, request)


def test_one_candidate_a_depth_gives_the_chain_and_padding() -> None:
    _, token, tree = grown(3, 7, 1, 16, seed=1)
    for request in range(3):
        assert [-1, *range(7), *[-1] * 9] == tree.parent[request].tolist()
        assert token[request, :, 0].tolist() == tree.token[request, 1:8].tolist()


def test_padding_has_the_root_s_token_and_position_and_nodes_their_depth_s() -> None:
    _, _, tree = grown(5, 3, 2, 20, seed=2)
    for request in range(5):
        start = int(tree.position[request, 0])
        assert start == request * 3 + 5
        assert int(tree.token[request, 0]) == 1000 + request
        depths = [0]
        for row in range(1, 21):
            parent = int(tree.parent[request, row])
            depths.append(depths[parent] + 1 if parent >= 0 else 0)
            if parent < 0:
                assert int(tree.token[request, row]) == 1000 + request
        assert [start + depth for depth in depths] == tree.position[request].tolist()
        assert sum(depth > 0 for depth in depths) == 2 + 4 + 8


def test_a_parent_always_comes_before_its_children() -> None:
    _, _, tree = grown(20, 5, 4, 12, seed=3)
    rows = torch.arange(13)
    assert bool((tree.parent < rows).all())


def test_impossible_candidates_become_padding() -> None:
    logp, token = marginals(1, 3, 3, seed=4)
    logp[0, :, 1:] = float("-inf")
    tree = tree_module.grow(logp, token, torch.tensor([7]), torch.tensor([2]), 6)
    assert tree.parent[0].tolist() == [-1, 0, 1, 2, -1, -1, -1]


@pytest.mark.parametrize(("ranks", "budget"), [(3, 9), (1, 8), (2, 1)])
def test_a_row_sees_its_prefix_its_ancestors_and_itself_and_padding_itself_alone(
    ranks: int, budget: int
) -> None:
    _, _, tree = grown(3, 4, ranks, budget, seed=5)
    seq_lens, width = torch.tensor([4, 0, 1030]), budget + 1
    found = tree_module.mask(tree.parent, seq_lens, int(seq_lens.sum()), 4)
    expected = []
    for request, prefix in enumerate(seq_lens.tolist()):
        allow = torch.zeros(width, prefix + width, dtype=torch.bool)
        for row in range(width):
            parent = int(tree.parent[request, row])
            allow[row, :prefix] = row == 0 or parent >= 0
            allow[row, prefix + row] = True
            while parent >= 0:
                allow[row, prefix + parent] = True
                parent = int(tree.parent[request, parent])
        expected.append(allow.flatten())
    assert torch.equal(torch.cat(expected), found)
    assert found.numel() == tree_module.mask_size(int(seq_lens.sum()), 3, width)


def walked(tree: Any, choice: Any, request: int) -> tuple[list[int], list[int]]:
    """The walk by plain search: rows and tokens taken."""
    rows, tokens, here = [], [], 0
    while True:
        rows.append(here)
        wanted = int(choice[request, here])
        tokens.append(wanted)
        children = (tree.parent[request] == here) & (tree.token[request] == wanted)
        if not bool(children.any()):
            return rows, tokens
        here = int(children.nonzero()[0])


def test_the_walk_follows_the_target_s_choices_while_they_are_in_the_tree() -> None:
    requests, depth, budget = 40, 4, 10
    _, token, tree = grown(requests, depth, 3, budget, seed=6)
    draw = torch.Generator().manual_seed(9)
    at = torch.randint(0, 3, (requests, budget + 1), generator=draw)
    depths = (tree.position - tree.position[:, :1]).clamp(max=depth - 1)
    choice = token[torch.arange(requests)[:, None], depths, at]
    found = tree_module.walk(tree, choice, depth)
    longest = 0
    for request in range(requests):
        rows, tokens = walked(tree, choice, request)
        committed, nodes = int(found[request, 0]), int(found[request, 1])
        assert [len(rows), int((tree.parent[request] >= 0).sum())] == [committed, nodes]
        assert rows == found[request, 2 : 2 + committed].tolist()
        assert tokens == found[request, 3 + depth : 3 + depth + committed].tolist()
        longest = max(longest, committed)
    assert longest > 2


def test_the_walk_never_enters_padding() -> None:
    _, _, tree = grown(2, 2, 1, 6, seed=7)
    found = tree_module.walk(tree, tree.token[:, :1].expand(-1, 7).contiguous(), 2)
    assert found[:, :2].tolist() == [[1, 2], [1, 2]]
