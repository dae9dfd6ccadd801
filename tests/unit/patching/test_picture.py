"""Which columns a row reads: the kernel's index arithmetic on plain integers, drawn as text."""

from __future__ import annotations

import random

import pytest

from ddtree_ops.patching.proof.cases import SMALL, Case, ancestors, generate, tree
from ddtree_ops.patching.proof.memory import graph_buffers
from ddtree_ops.patching.proof.outcome import Tally, cause, judged
from ddtree_ops.patching.proof.picture import Layout, picture, readings

CHAIN = (-1, 0, 1, 2)
FORK = (-1, 0, 0, -1)  # a root with two children, and one node of padding


def layout(case: Case, width: int) -> Layout:
    """Metadata as a backend of this width makes it."""
    mask, starts, at = [], [0], 0
    for prefix, parents in zip(case.prefixes, case.trees, strict=True):
        for seen in ancestors(parents):
            mask += [1] * prefix + [int(column in seen) for column in range(case.width)]
        at += width * (prefix + width)
        starts.append(at)
    rows = [width * request for request in range(case.batch + 1)]
    return Layout(rows, starts, width, mask)


@pytest.fixture
def case() -> Case:
    return Case("eager", 3, 2, (2, 1), (CHAIN, FORK), SMALL[0][0], seed=1)


def test_with_the_right_width_every_row_reads_its_ancestors(case) -> None:
    expected = [tuple(seen) for parents in case.trees for seen in ancestors(parents)]
    assert expected == [reading.tree for reading in readings(case, layout(case, 4))]


def test_the_right_width_is_drawn_without_a_wrong_mark(case) -> None:
    assert picture(case, layout(case, 4)).splitlines()[1:-1] == [
        "r0 row   0  #...",
        "r0 row   1  ##..",
        "r0 row   2  ###.",
        "r0 row   3  ####",
        "r1 row   0  #...",
        "r1 row   1  ##..",
        "r1 row   2  #.#.",
        "r1 row   3  ...#",
    ]


def test_too_small_a_width_is_drawn_row_by_row(case) -> None:
    assert picture(case, layout(case, 2)).splitlines()[1:-1] == [
        "r0 row   0  #...",
        "r0 row   1  ##..",  # by luck: its prefix is seen by every row
        "r0 row   2  !oo.  taken for row 0 of request 1 (its prefix of 1)",
        "r0 row   3  !!oo  taken for row 1 of request 1 (its prefix of 1)",
        "r1 row   0  not computed",
        "r1 row   1  not computed",
        "r1 row   2  not computed",
        "r1 row   3  not computed",
    ]


@pytest.mark.parametrize(
    ("width", "held", "expected"),
    [
        (4, 8, None),
        (2, 8, "width: 2 rows a request, expected 4"),
        (4, 4, "graph: captured for 2 tokens a request, expected 4"),
    ],
)
def test_the_root_of_a_fault_is_named(case, width, held, expected) -> None:
    found = cause(case, layout(case, width), held)
    assert expected == (found.text if found else None)


def test_metadata_that_is_right_leaves_the_kernel(case) -> None:
    errors = [0.0] * 7 + [0.5]
    found = judged(case, layout(case, 4), 8, errors, 1e-4)
    assert (found.wrong, found.unwritten, found.cause.kind) == (1, 0, "value")


def test_a_row_that_is_not_a_number_is_wrong_not_right(case) -> None:
    assert judged(case, layout(case, 4), 8, [0.0] * 7 + [float("nan")], 1e-4).wrong == 1


def test_a_tally_over_no_cases_does_not_pass() -> None:
    assert Tally().document()["passed"] is False


def test_trees_keep_their_cap_and_their_padding() -> None:
    rng = random.Random(5)
    for topk in (1, 2, 4):
        parents = tree(rng, 16, topk, 11)
        children = [parents.count(node) for node in range(17)]
        assert max(children) <= topk
        assert parents[12:] == (-1,) * 5
        assert all(0 <= parent < node for node, parent in enumerate(parents[1:12], start=1))


def test_the_same_seed_gives_the_same_cases() -> None:
    assert list(generate(40, (7, 16), seed=9)) == list(generate(40, (7, 16), seed=9))


def test_cases_cover_every_mode_budget_and_batch() -> None:
    cases = list(generate(600, (1, 8, 128)))
    assert {case.mode for case in cases} == {"eager", "capture", "replay"}
    assert {case.budget for case in cases} == {1, 8, 128}
    assert {case.batch for case in cases} == {1, 2, 3, 4, 5}
    assert {case.heads.name for case in cases} == {shape.name for shape, _ in SMALL}


def test_graph_buffers_grow_with_the_batch_times_the_width() -> None:
    small, large = (
        graph_buffers(batch=48, width=width, context=262144, query_heads=8, value_dim=512)
        for width in (8, 65)
    )
    assert (small.indices >> 20, large.indices >> 20) == (768, 6240)
    assert large.mask == 48 * 65 * (262144 + 65)
