"""What is proved: budgets, top-k caps, batches, ragged prefixes, head shapes; all from one seed."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

MODES = ("eager", "capture", "replay")


@dataclass(frozen=True)
class Heads:
    """Head shape of one layer as a rank sees it; `value` differs from `key` in MLA alone."""

    name: str
    query: int  # query heads
    kv: int  # key-value heads
    key: int  # dimensions of a query or key
    value: int  # dimensions of a value

    @property
    def group(self) -> int:
        """Query heads that share a key-value head."""
        return self.query // self.kv


# (shape, how often): each program of an interpreted kernel takes milliseconds, MLA's the most
SMALL = (
    (Heads("one head", 1, 1, 16, 16), 20),
    (Heads("MHA", 2, 2, 16, 16), 2),
    (Heads("GQA", 4, 2, 32, 32), 1),
    (Heads("MLA", 1, 1, 576, 512), 1),
)
REAL = (
    (Heads("MHA", 16, 16, 128, 128), 1),
    (Heads("GQA", 16, 2, 128, 128), 1),
    (Heads("MLA", 16, 1, 576, 512), 1),
)

BATCHES = (*(1,) * 20, 2, 2, 3, 4, 5)  # likewise


@dataclass(frozen=True)
class Case:
    """One verify pass of a batch; `trees[r][i]` is the parent of node i of request r, -1 for none.

    Node 0 is the root. A node with parent -1 other than the root is padding: it sees itself alone.
    """

    mode: str
    budget: int
    topk: int
    prefixes: tuple[int, ...]
    trees: tuple[tuple[int, ...], ...]
    heads: Heads
    seed: int
    padded: int = 0  # requests that a graph captured for more holds besides these

    @property
    def width(self) -> int:
        return self.budget + 1

    @property
    def batch(self) -> int:
        return len(self.prefixes)

    @property
    def rows(self) -> int:
        return self.batch * self.width

    def __str__(self) -> str:
        prefixes = ",".join(map(str, self.prefixes))
        return f"{self.mode} budget {self.budget} top-k {self.topk} prefixes {prefixes} {self.heads.name}"


def known_fault() -> Case:
    """Two requests at budget 16: width 8 instead of 17 leaves 33 of 34 rows wrong, 18 of them unwritten."""
    bushy = (-1, *((node - 1) // 2 for node in range(1, 17)))
    padded = (*bushy[:9], *(-1 for _ in range(8)))
    return Case("eager", 16, 4, (5, 20), (bushy, padded), SMALL[1][0], seed=3)


def tree(rng: random.Random, budget: int, topk: int, nodes: int) -> tuple[int, ...]:
    """Parents of a random tree: `nodes` below the root, none with more than `topk` children, then padding."""
    parents, room = [-1], {0: topk}
    for node in range(1, nodes + 1):
        open_nodes = list(room)
        # deep or bushy: the newest open node, or any
        parent = open_nodes[-1] if rng.random() < 0.4 else rng.choice(open_nodes)
        parents.append(parent)
        room[parent] -= 1
        if not room[parent]:
            del room[parent]
        room[node] = topk
    return tuple(parents + [-1] * (budget - nodes))


def ancestors(parents: Sequence[int]) -> list[list[int]]:
    """For each node the nodes that it may see, itself included, ascending."""
    seen: list[list[int]] = []
    for node, parent in enumerate(parents):
        seen.append(sorted([*(seen[parent] if parent >= 0 else []), node]))
    return seen


def generate(
    count: int,
    budgets: Sequence[int],
    *,
    seed: int = 0,
    heads: Sequence[tuple[Heads, int]] = SMALL,
    batches: Sequence[int] = BATCHES,
) -> Iterator[Case]:
    """`count` cases over these budgets, every mode in turn; the same seed gives the same cases."""
    rng = random.Random(seed)
    shapes, shares = [shape for shape, _ in heads], [share for _, share in heads]
    for number in range(count):
        yield case(
            rng,
            mode=MODES[number % len(MODES)],
            budget=budgets[number // len(MODES) % len(budgets)],
            heads=rng.choices(shapes, shares)[0],
            batch=rng.choice(batches),
        )


def case(rng: random.Random, *, mode: str, budget: int, heads: Heads, batch: int, longest: int = 70) -> Case:
    """One case with ragged prefixes up to `longest` tokens and a random share of padding in each tree."""
    topk = rng.choice((1, 2, 4, 8, 16))
    nodes = [budget if rng.random() < 0.4 else rng.randint(0, budget) for _ in range(batch)]
    return Case(
        mode=mode,
        budget=budget,
        topk=topk,
        prefixes=tuple(rng.choice((1, rng.randint(1, longest))) for _ in range(batch)),
        trees=tuple(tree(rng, budget, topk, count) for count in nodes),
        heads=heads,
        seed=rng.randrange(1 << 30),
        padded=rng.choice((0, 0, 1, 2)) if mode == "replay" else 0,
    )
