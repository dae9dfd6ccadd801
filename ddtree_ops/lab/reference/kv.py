"""The key/value pool and the prefix cache over it, page size 1."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .model import DraftConfig, Floats, Ints, TargetConfig


class Pool:
    """Keys and values of the target's layers and of the drafter, one slot a token."""

    def __init__(self, target: TargetConfig, draft: DraftConfig | None, slots: int) -> None:
        size = target.width // target.heads
        self.layers = [np.zeros((slots, 2, target.heads, size), np.float32) for _ in range(target.layers)]
        heads, size = (draft.heads, draft.width // draft.heads) if draft else (0, 0)
        self.draft = np.zeros((slots, 2, heads, size), np.float32)
        self.size = slots
        self.clear()

    def clear(self) -> None:
        """All slots are free; what they hold stays until overwritten."""
        self._free = list(range(self.size - 1, -1, -1))

    @property
    def free(self) -> int:
        """How many slots are free."""
        return len(self._free)

    def take(self, count: int) -> Ints:
        """`count` free slots; the caller saw to it that there are as many."""
        at = len(self._free) - count
        if at < 0:
            raise MemoryError(f"KV pool: {count} slots asked for, {len(self._free)} free")
        slots = self._free[at:]
        del self._free[at:]
        return np.array(slots[::-1], np.int64)

    def give_back(self, slots: Sequence[int] | Ints) -> None:
        """Frees slots."""
        self._free.extend(int(slot) for slot in slots)

    def write(self, layer: int, slots: Ints, keys: Floats, values: Floats) -> None:
        """Stores one layer's keys and values, (tokens, heads, size)."""
        self.layers[layer][slots, 0] = keys
        self.layers[layer][slots, 1] = values

    def write_draft(self, slots: Ints, keys: Floats, values: Floats) -> None:
        """Stores the drafter's keys and values, (tokens, heads, size)."""
        self.draft[slots, 0] = keys
        self.draft[slots, 1] = values


@dataclass(slots=True, eq=False)
class _Node:
    """One cached token."""

    slot: int
    parent: _Node | None
    token: int
    children: dict[int, _Node] = field(default_factory=dict)
    users: int = 0
    used: int = 0


class PrefixCache:
    """A trie of token ids to slots. Running requests hold their path; the rest goes, oldest leaf first."""

    def __init__(self, pool: Pool, *, enabled: bool = True) -> None:
        self._pool, self._enabled = pool, enabled
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Forgets everything and frees every slot; only while no request runs."""
        self._root = _Node(-1, None, -1)
        self._pool.clear()
        self.size = 0

    def match(self, tokens: Sequence[int]) -> Ints:
        """Slots of the longest cached prefix, held for the caller until `release`."""
        path = self._path(tokens) if self._enabled else []
        for node in path:
            node.users += 1
        return np.array([node.slot for node in path], np.int64)

    def insert(self, tokens: Sequence[int], slots: Ints, held: int) -> Ints:
        """Adds tokens with their slots, of which the first `held` are held already; holds the others too.

        Returns the slots to use from now on: the cache's where a token was cached, and the caller's is freed.
        """
        self._clock += 1
        node, kept = self._root, slots.copy()
        if not self._enabled:
            return kept
        for at, (token, slot) in enumerate(zip(tokens, slots.tolist(), strict=True)):
            child = node.children.get(token)
            if child is None:
                child = node.children[token] = _Node(slot, node, token)
                self.size += 1
            elif child.slot != slot:
                self._pool.give_back([slot])
                kept[at] = child.slot
            child.users += at >= held
            child.used = self._clock
            node = child
        return kept

    def release(self, tokens: Sequence[int], slots: Ints) -> None:
        """Ends the hold on a path; without a cache, frees its slots."""
        if not self._enabled:
            self._pool.give_back(slots)
        for node in self._path(tokens):
            node.users -= 1

    def make_room(self, count: int) -> None:
        """Drops unheld leaves, least recently used first, until `count` slots are free."""
        while self._pool.free < count:
            leaves = [node for node in self._nodes() if not node.children and not node.users]
            if not leaves:
                return
            for node in sorted(leaves, key=lambda leaf: leaf.used)[: count - self._pool.free]:
                assert node.parent is not None
                del node.parent.children[node.token]
                self._pool.give_back([node.slot])
                self.size -= 1

    def _path(self, tokens: Sequence[int]) -> list[_Node]:
        self._clock += 1
        node, path = self._root, []
        for token in tokens:
            child = node.children.get(token)
            if child is None:
                break
            child.used = self._clock
            path.append(child)
            node = child
        return path

    def _nodes(self) -> list[_Node]:
        found: list[_Node] = []
        open_nodes = [self._root]
        while open_nodes:
            node = open_nodes.pop()
            open_nodes += node.children.values()
            found += node.children.values()
        return found
