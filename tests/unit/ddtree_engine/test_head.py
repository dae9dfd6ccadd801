from __future__ import annotations

import threading
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from .overlay import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.proof
head_module = load("ddtree_head")


@dataclass
class Gather:
    """An all-gather between threads: every rank waits for all, then reads what all gave."""

    world_size: int

    def __post_init__(self) -> None:
        self.parts: dict[int, Any] = {}
        self.barrier = threading.Barrier(self.world_size)

    def of(self, rank: int) -> SimpleNamespace:
        def all_gather_into_tensor(out: Any, mine: Any) -> None:
            self.parts[rank] = mine
            self.barrier.wait(timeout=60)
            out.copy_(torch.cat([self.parts[other] for other in range(self.world_size)]))
            self.barrier.wait(timeout=60)  # nobody gives the next part before all have read this one

        return SimpleNamespace(world_size=self.world_size, all_gather_into_tensor=all_gather_into_tensor)


def shard(weight: Any, start: int, stop: int, padded: int, added: Any = None, added_start: int = 0) -> Any:
    """A vocab-parallel head as SGLang lays it out: base rows, padding, added rows."""
    rows = torch.full((padded, weight.shape[1]), 50.0)  # padding must never win
    rows[: stop - start] = weight[start:stop]
    extra = weight[:0] if added is None else added
    indices = SimpleNamespace(
        num_org_elements=stop - start,
        num_org_elements_padded=padded,
        org_vocab_start_index=start,
        num_added_elements=extra.shape[0],
        added_vocab_start_index=added_start,
    )
    return SimpleNamespace(weight=torch.cat([rows, extra]), shard_indices=indices)


def expected(hidden: Any, weight: Any, ranks: int) -> tuple[Any, Any]:
    return torch.log_softmax(hidden @ weight.T, -1).topk(ranks, -1)


@pytest.fixture
def case() -> tuple[Any, Any]:
    draw = torch.Generator().manual_seed(2)
    return torch.randn(300, 8, generator=draw), torch.randn(50, 8, generator=draw)


def test_one_rank_gives_the_likeliest_tokens_and_their_log_probabilities(case: tuple[Any, Any]) -> None:
    hidden, weight = case
    head = head_module.MarginalHead(shard(weight, 0, 50, 64), SimpleNamespace(world_size=1), 4)
    logp, token = head.marginals(hidden)
    wanted, ids = expected(hidden, weight, 4)
    assert torch.equal(ids, token)
    torch.testing.assert_close(wanted, logp)


def test_a_cap_of_one_gives_the_chain_s_argmax(case: tuple[Any, Any]) -> None:
    hidden, weight = case
    head = head_module.MarginalHead(shard(weight, 0, 50, 64), SimpleNamespace(world_size=1), 1)
    _, token = head.marginals(hidden)
    assert torch.equal((hidden @ weight.T).argmax(-1, keepdim=True), token)


def test_added_tokens_have_their_own_ids(case: tuple[Any, Any]) -> None:
    hidden, weight = case
    layout = shard(weight[:40], 0, 40, 48, added=weight[40:], added_start=1000)
    head = head_module.MarginalHead(layout, SimpleNamespace(world_size=1), 3)
    logp, token = head.marginals(hidden)
    wanted, ids = expected(hidden, weight, 3)
    assert torch.equal(torch.where(ids < 40, ids, ids - 40 + 1000), token)
    torch.testing.assert_close(wanted, logp)


def test_ranks_of_a_split_vocabulary_agree_with_the_whole_one(case: tuple[Any, Any]) -> None:
    hidden, weight = case
    gather = Gather(2)
    shards = [shard(weight, 0, 25, 32), shard(weight, 25, 50, 32)]
    found: dict[int, Any] = {}

    def run(rank: int) -> None:
        found[rank] = head_module.MarginalHead(shards[rank], gather.of(rank), 5).marginals(hidden)

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    wanted, ids = expected(hidden, weight, 5)
    for rank in range(2):
        assert torch.equal(ids, found[rank][1])
        torch.testing.assert_close(wanted, found[rank][0])
