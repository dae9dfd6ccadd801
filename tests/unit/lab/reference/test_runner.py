"""The passes: the target writes through chains and trees what it writes alone, if the width is right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from .conftest import PATCHED, SMOKE, STOCK, Alone, MakeBench, accept_length, prompt_text

ALL = [prompt_text(name) for name in SMOKE]
SHORT = [prompt_text(name) for name in SMOKE if name != "summary"]
POEM, STORY = prompt_text("poem"), prompt_text("lighthouse")


@pytest.mark.parametrize("name", [name for name in SMOKE if "function" in SMOKE[name]])
def test_the_target_writes_code_that_passes_the_smoke_cases(bench: MakeBench, name: str) -> None:
    plain = bench()
    [request] = plain.ask([prompt_text(name)])
    code = request.text(plain.runner.tokenizer).removeprefix("```python\n").removesuffix("```")
    names: dict[str, Any] = {}
    exec(code, names)

    cases = SMOKE[name]["cases"]
    assert [names[name](*case["args"]) for case in cases] == [case["expected"] for case in cases]


@pytest.mark.parametrize("graph", [True, False], ids=["graphs", "eager"])
@pytest.mark.parametrize(
    ("width", "budget", "topk"),
    [
        (STOCK, None, None),
        (STOCK, 7, 1),
        (STOCK, 7, 4),
        (PATCHED, None, None),
        (PATCHED, 8, 4),
        (PATCHED, 16, 1),
        (PATCHED, 16, 4),
        (PATCHED, 32, None),
    ],
)
def test_a_right_width_writes_what_the_target_writes_alone(
    bench: MakeBench, alone: Alone, width: str, budget: int | None, topk: int | None, graph: bool
) -> None:
    speculative, expected = bench(width, budget=budget, topk=topk, graph=graph), [alone(p, 64) for p in ALL]

    assert speculative.outputs(ALL, tokens=64) == expected  # together
    speculative.flush()
    assert [speculative.outputs([prompt], tokens=64)[0] for prompt in ALL] == expected  # one by one


@pytest.mark.parametrize("graph", [True, False], ids=["graphs", "eager"])
def test_the_stock_width_garbles_a_tree_wider_than_the_block(
    bench: MakeBench, alone: Alone, graph: bool
) -> None:
    garbled = bench(STOCK, budget=16, topk=4, graph=graph)
    same = [prompt for prompt in SHORT if garbled.outputs([prompt])[0] == alone(prompt, 120)]

    assert len(same) <= 1


def test_the_stock_width_garbles_padding_without_branches(bench: MakeBench, alone: Alone) -> None:
    """A chain padded to 17 rows: most answers survive one at a time, hardly any together."""
    outputs = bench(STOCK, budget=16, topk=1).outputs(SHORT)
    same = [prompt for prompt, output in zip(SHORT, outputs, strict=True) if output == alone(prompt, 120)]

    assert len(same) <= 2


def test_a_tree_commits_more_a_step_than_the_chain(bench: MakeBench) -> None:
    chain = accept_length(bench(STOCK).ask(ALL))
    narrow = accept_length(bench(PATCHED, budget=7, topk=1).ask(ALL))
    tree = accept_length(bench(PATCHED, budget=16, topk=4).ask(ALL))

    assert chain == narrow
    assert 2.2 < chain < 4.5
    assert tree > 1.08 * chain


@pytest.mark.parametrize("temperature", [0.6, 1.0])
@pytest.mark.parametrize("budget", [None, 16])
def test_sampling_through_a_tree_is_lossless(
    bench: MakeBench, temperature: float, budget: int | None
) -> None:
    """The target draws one random number a committed token, so that equal seeds must give equal texts."""
    alone = bench().outputs([POEM, STORY], temperature=temperature, seed=5)

    assert bench(PATCHED, budget=budget).outputs([POEM, STORY], temperature=temperature, seed=5) == alone


def test_draws_of_the_story_differ(bench: MakeBench) -> None:
    drawn = bench(PATCHED, budget=16, topk=4).outputs([STORY] * 6, tokens=64, temperature=0.8)

    assert len({tuple(output) for output in drawn}) >= 4


def test_a_prompt_seen_before_comes_from_the_prefix_cache(bench: MakeBench) -> None:
    tree = bench(PATCHED, budget=16, topk=4)
    [first], [second] = tree.ask([POEM]), tree.ask([POEM])

    assert (first.cached, second.cached) == (0, len(first.prompt) - 1)
    assert second.output == first.output


def test_keys_of_a_broken_pass_stay_in_the_cache_until_it_is_flushed(bench: MakeBench) -> None:
    broken = bench(STOCK, budget=16, topk=4)
    [request] = broken.ask([STORY])
    ids = request.tokens[: len(request.slots)]
    before = broken.runner.pool.layers[-1][broken.runner.cache.match(ids)].copy()
    broken.flush()
    [again] = broken.ask_ids([ids], tokens=1)
    after = broken.runner.pool.layers[-1][broken.runner.cache.match(ids)]

    assert again.cached == 0
    assert not np.allclose(before[: len(after)], after, atol=1e-3)


def test_every_slot_is_free_or_cached_when_nothing_runs(bench: MakeBench) -> None:
    tree = bench(PATCHED, budget=16, topk=4)
    tree.ask([*SHORT, *SHORT], temperature=1.0)

    assert tree.runner.pool.free + tree.runner.cache.size == tree.runner.pool.size


def test_a_full_pool_drops_old_prefixes(bench: MakeBench, alone: Alone) -> None:
    small = bench(PATCHED, budget=16, extra=["--max-total-tokens", "400"])
    outputs = [small.outputs([prompt], tokens=64)[0] for prompt in SHORT]

    assert outputs == [alone(prompt, 64) for prompt in SHORT]


def test_a_batch_beyond_the_captured_graphs_runs_eager(bench: MakeBench, alone: Alone) -> None:
    tree = bench(PATCHED, budget=16, extra=["--cuda-graph-max-bs", "2"])

    assert tree.outputs(SHORT, tokens=32) == [alone(prompt, 32) for prompt in SHORT]
