from __future__ import annotations

import numpy as np

from .overlay import load

commit = load("ddtree_commit")


def test_kept_and_freed_rows_are_those_that_a_plain_loop_finds() -> None:
    draw = np.random.default_rng(3)
    for _ in range(300):
        requests, path, width = (int(draw.integers(1, top)) for top in (9, 9, 30))
        path = min(path, width)
        rows = np.stack([np.sort(draw.choice(width, path, replace=False)) for _ in range(requests)])
        lengths, seq_lens = draw.integers(1, path + 1, requests), draw.integers(0, 5000, requests)
        found = commit.plan(rows, lengths, seq_lens, width)
        kept, positions = [], []
        for request in range(requests):
            for step in range(lengths[request]):
                kept.append(request * width + int(rows[request, step]))
                positions.append(int(seq_lens[request]) + step)
        assert kept == found.kept.tolist()
        assert positions == found.positions.tolist()
        assert sorted(set(range(requests * width)) - set(kept)) == found.freed.tolist()


def test_a_walk_s_columns_are_count_nodes_rows_and_tokens() -> None:
    found = commit.read_walk(np.array([[3, 16, 0, 2, 5, 0, 11, 12, 13, 14]], dtype=np.int32))
    assert [found.committed.tolist(), found.nodes.tolist()] == [[3], [16]]
    assert [found.rows.tolist(), found.tokens.tolist()] == [[[0, 2, 5, 0]], [[11, 12, 13, 14]]]
