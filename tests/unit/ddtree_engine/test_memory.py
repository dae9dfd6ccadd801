from __future__ import annotations

from .overlay import load

memory = load("ddtree_memory")
SIZES = {"vocab_size": 163840, "heads": 8, "splits": 8, "head_dim": 128, "hidden_size": 7168}


def test_the_buffers_grow_with_rows_and_context() -> None:
    need = memory.graph_memory(tokens=48 * 17, width=17, context_len=32768, **SIZES)
    assert need.logits == 816 * 163840 * 4
    assert need.mask == 816 * (32768 + 17)
    assert need.kv_indices == 816 * 32768 * 8
    assert need.total == sum(getattr(need, name) for name in memory.GraphMemory.__dataclass_fields__)


def test_a_shortage_is_told_with_its_numbers_and_what_to_lower() -> None:
    need = memory.graph_memory(tokens=48 * 65, width=65, context_len=131072, **SIZES)
    told = memory.shortage(need, 2 * memory.GIB, 48, 65, 131072)
    for words in (
        "batch 48 x verify width 65",
        "context length 131072",
        "kv_indices 3.05",
        "got 2.00 GiB free",
    ):
        assert words in told
    for flag in (
        "--cuda-graph-max-bs",
        "--context-length",
        "--speculative-ddtree-budget",
        "--disable-cuda-graph",
    ):
        assert flag in told


def test_buffers_that_fit_are_not_remarked_on() -> None:
    need = memory.graph_memory(tokens=17, width=17, context_len=4096, **SIZES)
    assert memory.shortage(need, need.total, 1, 17, 4096) is None
