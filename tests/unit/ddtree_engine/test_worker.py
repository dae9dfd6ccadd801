from __future__ import annotations

import random
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
pytestmark = pytest.mark.proof


def served(budget: int, cap: int, seed: int) -> tuple[list[Any], Any, int]:
    """Requests run to their ends by the worker; the pool, and how many slots it began with."""
    from . import stand_ins as stood

    draw = random.Random(seed)
    pool, table = stood.Pool(400), torch.zeros(5, 200, dtype=torch.int32)
    slots, reqs = len(pool.free_pages), []
    for row in range(5):
        prompt = [draw.randrange(stood.VOCAB) for _ in range(draw.randint(1, 9))]
        req = stood.Request(prompt, most=draw.randint(2, 14), stop=draw.choice([-1, -1, 3]))
        req.output_ids.append(stood.following(prompt))
        taken = pool.alloc(len(prompt))
        pool.target[taken] = pool.draft[taken] = torch.tensor(prompt)
        pool.draft_position[taken] = torch.arange(len(prompt))
        table[row, : len(prompt)] = taken.to(torch.int32)
        reqs.append(req)
    with stood.worker_module() as module:
        module.StepClock = stood.Clock
        args = SimpleNamespace(
            speculative_ddtree_budget=budget,
            speculative_ddtree_topk_cap=cap,
            speculative_num_draft_tokens=stood.BLOCK,
            max_running_requests=5,
            disable_cuda_graph=True,
            cuda_graph_max_bs=None,
        )
        worker = module.DDTreeWorker(args, stood.Target(pool), stood.DraftRunner(pool, table))
        batch = stood.Batch(reqs, pool, table)
        batch.spec_info = stood.DraftInput(
            verified_id=torch.tensor([req.output_ids[-1] for req in reqs]),
            target_hidden=torch.zeros(0, 1),
            ctx_lens=torch.zeros(5, dtype=torch.int32),
            draft_seq_lens=batch.seq_lens.to(torch.int32),
        )
        batch.keep_unfinished()
        while batch.reqs:
            result = worker.forward_batch_generation(batch)
            assert result.num_accepted_drafts == sum(result.num_accepted_drafts_per_req_cpu)
            assert batch.seq_lens.tolist() == [
                len(r.origin_input_ids) + len(r.output_ids) - 1 for r in batch.reqs
            ]
            batch.keep_unfinished()
    return reqs, pool, slots


@pytest.mark.parametrize(("budget", "cap"), [(9, 3), (4, 1), (2, 2), (16, 4)])
def test_requests_end_with_the_plain_output_and_give_every_slot_back(budget: int, cap: int) -> None:
    from .stand_ins import plain_output

    reqs, pool, slots = served(budget, cap, seed=budget)
    for req in reqs:
        assert plain_output(req.origin_input_ids, req.most, req.stop) == req.output_ids
        assert req.spec_verify_ct == len(req.histogram)
        assert req.spec_accepted_drafts == sum(req.histogram)
    assert len(pool.free_pages) == slots
    assert sum(req.spec_accepted_drafts for req in reqs) > 0
