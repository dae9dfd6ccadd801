"""The pool and the prefix cache."""

from __future__ import annotations

import pytest

from ddtree_ops.lab.reference.kv import Pool, PrefixCache
from ddtree_ops.lab.reference.model import TargetConfig

CONFIG = TargetConfig(vocabulary=8, width=8, layers=1, heads=2, inner=8)


@pytest.fixture
def pool() -> Pool:
    return Pool(CONFIG, None, 10)


def test_slots_are_taken_once_and_in_order(pool: Pool) -> None:
    assert (pool.take(3).tolist(), pool.take(2).tolist(), pool.free) == ([0, 1, 2], [3, 4], 5)


def test_more_slots_than_there_are_is_an_error(pool: Pool) -> None:
    with pytest.raises(MemoryError, match="11 slots asked for, 10 free"):
        pool.take(11)


def test_the_longest_cached_prefix_is_found(pool: Pool) -> None:
    cache = PrefixCache(pool)
    cache.insert([1, 2, 3], pool.take(3), held=0)

    assert cache.match([1, 2, 7]).tolist() == [0, 1]
    assert cache.match([2]).tolist() == []


def test_a_token_that_is_cached_already_keeps_its_slot_and_frees_the_new_one(pool: Pool) -> None:
    cache = PrefixCache(pool)
    cache.insert([1, 2], pool.take(2), held=0)

    assert cache.insert([1, 2, 3], pool.take(3), held=0).tolist() == [0, 1, 4]
    assert pool.free == 7


def test_what_a_request_holds_is_not_dropped(pool: Pool) -> None:
    cache = PrefixCache(pool)
    cache.insert([1, 2], pool.take(2), held=0)
    cache.insert([5, 6, 7], pool.take(3), held=0)
    cache.release([5, 6, 7], pool.take(0))
    cache.make_room(10)

    assert pool.free == 8
    assert cache.match([1, 2]).tolist() == [0, 1]


def test_the_oldest_leaf_goes_first(pool: Pool) -> None:
    cache = PrefixCache(pool)
    for tokens in ([1, 2], [3, 4]):
        cache.insert(tokens, pool.take(2), held=0)
        cache.release(tokens, pool.take(0))
    cache.match([1, 2])
    cache.release([1, 2], pool.take(0))
    cache.make_room(7)

    assert cache.match([3, 4]).tolist() == [2]


def test_a_disabled_cache_finds_nothing_and_frees_what_is_released(pool: Pool) -> None:
    cache = PrefixCache(pool, enabled=False)
    slots = cache.insert([1, 2], pool.take(2), held=0)
    assert cache.match([1, 2]).tolist() == []
    cache.release([1, 2], slots)

    assert pool.free == 10


def test_clearing_frees_every_slot(pool: Pool) -> None:
    cache = PrefixCache(pool)
    cache.insert([1, 2], pool.take(2), held=0)
    cache.clear()

    assert (pool.free, cache.size) == (10, 0)
