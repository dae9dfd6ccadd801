"""What the worker asks of SGLang, as small things that keep state: a KV store of token ids, a target that is a
function of the tokens that it can see, a drafter that reads its own cache and is sometimes wrong.
"""

from __future__ import annotations

import enum
import random
import sys
import types
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import torch

from .overlay import MODULES, _executed

VOCAB, BLOCK = 24, 5
PREFIX = "sglang.srt.speculative."
ORDER = ("flags", "tree", "commit", "head", "penalty", "sampling", "stats", "verify", "worker")


class ForwardMode(enum.Enum):
    DECODE = 1
    TARGET_VERIFY = 2

    def is_decode(self) -> bool:
        return self is ForwardMode.DECODE

    def is_idle(self) -> bool:
        return False


class Pool:
    """KV slots and what lies in them: the token whose key it is."""

    def __init__(self, size: int) -> None:
        self.free_pages = torch.arange(1, size + 1)
        self.target = torch.full((size + 1,), -1)
        self.draft = torch.full((size + 1,), -1)
        self.draft_position = torch.full((size + 1,), -1)

    def alloc(self, count: int) -> Any:
        taken, self.free_pages = self.free_pages[:count], self.free_pages[count:]
        return taken if len(taken) == count else None

    def free(self, slots: Any) -> None:
        assert not set(slots.tolist()) & set(self.free_pages.tolist()), "freed twice"
        self.free_pages = torch.cat([self.free_pages, slots])

    def backup_state(self) -> Any:
        return self.free_pages

    def restore_state(self, state: Any) -> None:
        self.free_pages = state

    def set_kv_buffer(self, layer: Any, slots: Any, key: Any, value: Any, *_: Any) -> None:
        self.draft[slots] = key.view(-1).to(torch.int64)
        self.draft_position[slots] = value


@dataclass
class Request:
    """A request with the fields that a verify step changes."""

    origin_input_ids: list[int]
    most: int
    stop: int = -1
    output_ids: list[int] = field(default_factory=list)
    kv_committed_len: int = 0
    kv_allocated_len: int = 0
    spec_verify_ct: int = 0
    spec_accepted_drafts: int = 0
    customized_info: Any = None
    histogram: list[int] = field(default_factory=list)

    def finished(self) -> bool:
        return len(self.output_ids) >= self.most or self.stop in self.output_ids

    def check_finished(self) -> None:
        assert len(self.output_ids) <= self.most

    def update_spec_acceptance_histogram(self, accepted: int) -> None:
        self.histogram.append(accepted)


def following(tokens: Sequence[int]) -> int:
    """The target: what comes after these tokens."""
    return (sum((at % 7 + 1) * token for at, token in enumerate(tokens)) * 5 + len(tokens)) % VOCAB


def plain_output(prompt: list[int], most: int, stop: int) -> list[int]:
    """One token after the other, as a plain server does it."""
    output: list[int] = []
    while len(output) < most and stop not in output:
        output.append(following([*prompt, *output]))
    return output


class Batch:
    """Running requests, after prefill: their prompts lie in both caches, their first token is taken."""

    def __init__(self, reqs: list[Request], pool: Pool, table: Any) -> None:
        self.token_to_kv_pool_allocator, self.tree_cache = pool, pool
        self.req_to_token_pool = SimpleNamespace(req_to_token=table)
        self.sampling_info, self.is_extend_in_batch, self.return_hidden_states = None, False, False
        self.device, self.forward_mode, self.out_cache_loc = "cpu", ForwardMode.DECODE, None
        self.reqs, self.spec_info = reqs, None
        self.req_pool_indices = torch.arange(len(reqs))
        self.seq_lens = torch.tensor([len(req.origin_input_ids) for req in reqs])
        self._settle()

    def _settle(self) -> None:
        self.seq_lens_cpu, self.seq_lens_sum = self.seq_lens.clone(), int(self.seq_lens.sum())

    def keep_unfinished(self) -> None:
        """Lets ended requests go, their slots with them."""
        table, kept = self.req_to_token_pool.req_to_token, []
        for at, req in enumerate(self.reqs):
            if req.finished():
                row = int(self.req_pool_indices[at])
                self.token_to_kv_pool_allocator.free(table[row, : int(self.seq_lens[at])].to(torch.int64))
            else:
                kept.append(at)
        self.reqs = [self.reqs[at] for at in kept]
        self.req_pool_indices, self.seq_lens = self.req_pool_indices[kept], self.seq_lens[kept]
        self.spec_info.filter_batch(torch.tensor(kept, dtype=torch.int64))
        self._settle()

    def get_model_worker_batch(self) -> Batch:
        return self

    def batch_size(self) -> int:
        return len(self.reqs)


class Target:
    """The target's worker: writes every row's token to its slot, then answers from what the mask lets it see."""

    def __init__(self, pool: Pool) -> None:
        embed = torch.nn.Embedding(VOCAB + 1, 1)
        embed.weight.data = torch.arange(VOCAB + 1).float().unsqueeze(1)
        indices = SimpleNamespace(
            num_org_elements=VOCAB,
            num_org_elements_padded=VOCAB,
            org_vocab_start_index=0,
            num_added_elements=0,
            added_vocab_start_index=VOCAB,
        )
        head = SimpleNamespace(weight=torch.eye(VOCAB), shard_indices=indices)
        model = SimpleNamespace(lm_head=head, get_input_embeddings=lambda: embed)
        config = SimpleNamespace(vocab_size=VOCAB)
        self.model_runner = SimpleNamespace(
            model=model, model_config=config, attn_backend=object(), sliding_window_size=None, sampler=None
        )
        self._pool = pool

    def forward_batch_generation(self, batch: Any, is_verify: bool) -> Any:
        assert is_verify
        info, width = batch.spec_info, batch.spec_info.draft_token_num
        self._pool.target[batch.out_cache_loc] = info.draft_token
        table, logits, start = batch.req_to_token_pool.req_to_token, [], 0
        for at, prefix in enumerate(batch.seq_lens.tolist()):
            slots = table[int(batch.req_pool_indices[at]), : prefix + width].to(torch.int64)
            size = width * (prefix + width)
            for row, seen in enumerate(info.custom_mask[start : start + size].view(width, -1)):
                visible = self._pool.target[slots[seen]].tolist()
                if len(visible) > 1:  # padding sees itself alone
                    assert int(info.positions[at * width + row]) == len(visible) - 1
                logits.append(torch.nn.functional.one_hot(torch.tensor(following(visible)), VOCAB) * 9.0)
            start += size
        assert start == info.custom_mask.numel()
        output = SimpleNamespace(
            next_token_logits=torch.stack(logits), hidden_states=info.draft_token.float().unsqueeze(1)
        )
        return SimpleNamespace(logits_output=output, can_run_cuda_graph=False)


class DraftRunner:
    """The drafter: looks its context up in its own cache and is right about every second position."""

    def __init__(self, pool: Pool, table: Any) -> None:
        self.token_to_kv_pool_allocator = self.token_to_kv_pool = pool
        self.req_to_token_pool = SimpleNamespace(req_to_token=table)
        self.attn_backend, self._draw = None, random.Random(4)

    def forward(self, batch: Any) -> Any:
        rows = []
        for at, prefix in enumerate(batch.seq_lens.tolist()):
            row = self.req_to_token_pool.req_to_token[int(batch.req_pool_indices[at])]
            pool, slots = self.token_to_kv_pool, row[:prefix].to(torch.int64)
            known = pool.draft[slots].tolist()
            assert known == pool.target[slots].tolist(), (
                "the drafter's cache does not hold the path's features"
            )
            assert pool.draft_position[slots].tolist() == list(range(prefix))
            known.append(int(batch.input_ids[at * BLOCK]))
            assert batch.positions[at * BLOCK : (at + 1) * BLOCK].tolist() == list(
                range(prefix, prefix + BLOCK)
            )
            rows.append(torch.zeros(VOCAB))
            for _ in range(BLOCK - 1):
                known.append(following(known))
                rows.append(self._guess(known[-1]))
        return SimpleNamespace(logits_output=SimpleNamespace(hidden_states=torch.stack(rows)))

    def _guess(self, right: int) -> Any:
        logits = torch.tensor([self._draw.random() for _ in range(VOCAB)])
        logits[right] += self._draw.choice([0.0, 0.7, 2.0])
        return logits


class DFlashWorker:
    """What the stock worker leaves behind for its child, for one rank on a CPU."""

    def __init__(self, server_args: Any, target_worker: Target, draft_model_runner: DraftRunner) -> None:
        self.server_args, self.target_worker, self.device = server_args, target_worker, "cpu"
        self.draft_model_runner, self.tp_rank, self.block_size = draft_model_runner, 0, BLOCK
        self.use_compact_draft_cache, self.draft_window_size = False, None
        self._mask_token_id, self._block_pos_offsets, self._draft_block_spec_info = (
            VOCAB,
            torch.arange(BLOCK),
            None,
        )
        attention = SimpleNamespace(attn=SimpleNamespace(k_scale=None, v_scale=None))
        layer = SimpleNamespace(self_attn=attention)
        self.draft_model = SimpleNamespace(layers=[layer], project_target_hidden=lambda hidden: hidden)
        self._fused_kv_helper = SimpleNamespace(
            rotary_emb=SimpleNamespace(cos_sin_cache=torch.zeros(4096, 2)),
            batched_kv_weight=torch.ones(1, 1, 1),
            k_norm_weights=[None],
            eps_values=[0.0],
            num_kv_heads=1,
            head_dim=1,
            rotary_dim=1,
        )


@dataclass
class DraftInput:
    """The drafter's state between steps."""

    verified_id: Any
    target_hidden: Any
    ctx_lens: Any
    draft_seq_lens: Any

    def filter_batch(self, kept: Any) -> None:
        for name in ("verified_id", "ctx_lens", "draft_seq_lens"):
            setattr(self, name, getattr(self, name)[kept])


@dataclass
class VerifyInput:
    """The stock verify input's fields, and its way to take and list slots."""

    draft_token: Any
    positions: Any
    draft_token_num: int
    custom_mask: Any = None

    def prepare_for_verify(self, batch: Any, page_size: int, *, build_custom_mask: bool) -> None:
        assert (page_size, build_custom_mask) == (1, False)
        batch.out_cache_loc = batch.token_to_kv_pool_allocator.alloc(len(self.draft_token))
        end = batch.seq_lens + self.draft_token_num
        table = batch.req_to_token_pool.req_to_token
        assign(batch.req_pool_indices, table, batch.seq_lens, end, batch.out_cache_loc, batch.batch_size())


def assign(rows: Any, table: Any, start: Any, end: Any, slots: Any, requests: int) -> None:
    """Lists slots in the requests' table, as the stock kernel does."""
    at = 0
    for row, first, last in zip(rows.tolist(), start.tolist(), end.tolist(), strict=True):
        table[row, first:last] = slots[at : at + last - first].to(table.dtype)
        at += last - first
    assert at == len(slots)


class Clock:
    """Stands for GPU events, which a CPU has none of."""

    def mark(self, name: str) -> None:
        self.last = name

    def read(self) -> Any:
        return SimpleNamespace(draft_ms=1.0, build_ms=1.0, verify_ms=1.0)


def _module(name: str, **names: Any) -> None:
    module = types.ModuleType(name)
    module.__dict__.update(names)
    sys.modules[name] = module


@contextmanager
def worker_module() -> Iterator[Any]:
    """The overlay's worker, its SGLang imports served from here."""
    before = {key: value for key, value in sys.modules.items() if key.split(".")[0] == "sglang"}
    group = SimpleNamespace(world_size=1)
    modes = SimpleNamespace(NULL=0, FULL=1)
    try:
        _module("sglang.srt.distributed", get_tp_group=lambda: group)
        _module("sglang.srt.managers.scheduler", GenerationBatchResult=SimpleNamespace)
        _module(
            "sglang.srt.model_executor.forward_batch_info",
            CaptureHiddenMode=modes,
            ForwardBatch=SimpleNamespace,
            ForwardMode=ForwardMode,
        )
        _module("sglang.srt.layers.logits_processor", LogitsProcessorOutput=SimpleNamespace)
        _module("sglang.srt.layers.sampler", apply_custom_logit_processor=None)
        _module(PREFIX + "dflash_info", DFlashDraftInput=DraftInput, DFlashVerifyInput=VerifyInput)
        _module(PREFIX + "dflash_worker", DFlashWorker=DFlashWorker)
        _module(PREFIX + "spec_info", SpeculativeAlgorithm=SimpleNamespace(DFLASH="DFLASH"))
        _module(PREFIX + "spec_utils", assign_req_to_token_pool_func=assign)
        _module(
            PREFIX + "triton_ops.fused_kv_materialize",
            _fused_norm_rope=lambda kv, norm, turns, at, *_: (kv, at),
        )
        for name in ORDER:
            assert (MODULES / f"ddtree_{name}.py").is_file()
            sys.modules[f"{PREFIX}ddtree_{name}"] = _executed(f"ddtree_{name}")
        yield sys.modules[PREFIX + "ddtree_worker"]
    finally:
        for key in [key for key in sys.modules if key.split(".")[0] == "sglang"]:
            del sys.modules[key]
        sys.modules.update(before)
