"""Where the attention proof may run: on a GPU that is free, beside an engine only when told so."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ddtree_ops.model.errors import Refused
from ddtree_ops.model.facts import Gpu, GpuProcess, NodeFacts
from ddtree_ops.run.selftest import NEED_MIB, need_room

ENGINE = GpuProcess(pid=7, name="sglang::scheduler", memory_mib=60_000)


def gpu(index: int, *held: GpuProcess, free: int = 80_000) -> Gpu:
    return Gpu(
        index=index, name="H200", arch="sm_90", driver="580", link="NVLink",
        memory_total_mib=143_000, memory_used_mib=143_000 - free, processes=held,
    )  # fmt: skip


def test_a_node_without_a_gpu_is_refused(make_facts: Callable[..., NodeFacts]) -> None:
    with pytest.raises(Refused, match="got no GPU"):
        need_room(make_facts(gpus=()), beside=True)


def test_held_gpus_are_refused_unless_beside(make_facts: Callable[..., NodeFacts]) -> None:
    facts = make_facts(gpus=(gpu(0, ENGINE), gpu(1, ENGINE)))
    with pytest.raises(
        Refused, match="got sglang::scheduler with 60,000 MiB of GPU 0, expected a GPU that is"
    ):
        need_room(facts, beside=False)
    need_room(facts, beside=True)


def test_a_free_gpu_among_held_ones_needs_no_leave(make_facts: Callable[..., NodeFacts]) -> None:
    need_room(make_facts(gpus=(gpu(0, ENGINE, free=90_000), gpu(1))), beside=False)


def test_a_gpu_without_room_is_refused_even_beside(make_facts: Callable[..., NodeFacts]) -> None:
    facts = make_facts(gpus=(gpu(0, ENGINE, free=NEED_MIB - 1),))
    with pytest.raises(Refused, match=f"got {NEED_MIB - 1:,} MiB free on GPU 0, expected {NEED_MIB:,}"):
        need_room(facts, beside=True)
