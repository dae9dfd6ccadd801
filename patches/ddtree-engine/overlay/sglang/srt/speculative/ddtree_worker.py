"""DDTree on top of the DFLASH worker: the same drafter, prefill and caches; a tree in the chain's place."""

from __future__ import annotations

import logging
from typing import Any, Optional, Sequence

import numpy as np
import torch
from sglang.srt.distributed import get_tp_group
from sglang.srt.managers.scheduler import GenerationBatchResult
from sglang.srt.model_executor.forward_batch_info import CaptureHiddenMode, ForwardBatch, ForwardMode
from sglang.srt.speculative.ddtree_commit import Commit, Walked, plan, read_walk
from sglang.srt.speculative.ddtree_flags import refusal_of_target, shape_of
from sglang.srt.speculative.ddtree_head import MarginalHead
from sglang.srt.speculative.ddtree_sampling import TreeSampler
from sglang.srt.speculative.ddtree_stats import StepGauges, StepTimes, ready_line, record
from sglang.srt.speculative.ddtree_tree import DraftTree, grow, mask, walk
from sglang.srt.speculative.ddtree_verify import DDTreeVerifyInput
from sglang.srt.speculative.dflash_info import DFlashDraftInput
from sglang.srt.speculative.dflash_worker import DFlashWorker
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from sglang.srt.speculative.spec_utils import assign_req_to_token_pool_func
from sglang.srt.speculative.triton_ops.fused_kv_materialize import _fused_norm_rope

logger = logging.getLogger(__name__)


class DDTreeWorker(DFlashWorker):
    """Decode steps with draft trees. A step reads one small tensor back from the GPU: the walk's result."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        runner = self.target_worker.model_runner
        refusal = refusal_of_target(runner.attn_backend, runner.sliding_window_size)
        if refusal:
            raise ValueError(refusal)
        self.shape = shape_of(self.server_args, self.block_size, runner.model_config.vocab_size)
        if self.shape.depth < 1:
            raise ValueError(f"DDTree: got a drafter with block size {self.block_size}, expected at least 2")
        group = get_tp_group()
        self._head = MarginalHead(self._output_head(), group, self.shape.ranks)
        self._sampler = TreeSampler(runner.sampler, group, self.shape.depth)
        self._clock = StepClock()
        self._block_ids: Optional[torch.Tensor] = None
        self._staging: Optional[torch.Tensor] = None
        self._gauges = self._make_gauges()
        self._compile()
        if self.tp_rank == 0:
            graphs = not self.server_args.disable_cuda_graph
            max_bs = self.server_args.cuda_graph_max_bs if graphs else None
            logger.info(ready_line(self.shape, self.block_size, graphs, max_bs))

    def forward_batch_generation(self, batch: Any, **kwargs: Any) -> GenerationBatchResult:
        """Prefill as DFLASH does it; otherwise one draft, one tree, one verify pass, one commit."""
        draft_input = getattr(batch, "spec_info", None)
        decoding = isinstance(draft_input, DFlashDraftInput) and batch.forward_mode.is_decode()
        if not decoding or batch.is_extend_in_batch:
            return super().forward_batch_generation(batch, **kwargs)
        with torch.inference_mode():
            tree = self._grow_tree(batch, draft_input)
            result = self._verify(batch, tree, **kwargs)
            walked = self._walk(batch, tree, result.logits_output)
            return self._commit(batch, draft_input, walked, result)

    def _compile(self) -> None:
        """Builds one tree of nothing, so that the first request need not wait for the compiler."""
        shape = (1, self.shape.depth, self.shape.ranks)
        logp = torch.zeros(shape, dtype=torch.float32, device=self.device)
        one = torch.ones(1, dtype=torch.int64, device=self.device)
        tree = grow(logp, torch.zeros_like(logp, dtype=torch.int64), one, one, self.shape.budget)
        mask(tree.parent, one, 1, self.shape.depth)
        walk(tree, tree.token, self.shape.depth)

    # --- draft

    def _grow_tree(self, batch: Any, draft_input: DFlashDraftInput) -> DraftTree:
        self._clock.mark("start")
        if draft_input.target_hidden is not None and draft_input.target_hidden.shape[0] > 0:
            self._append_target_hidden_to_draft_kv(batch, draft_input)
        root = draft_input.verified_id.to(torch.int64)
        hidden = self._draft(batch, draft_input, root)
        self._clock.mark("drafted")
        requests = root.shape[0]
        rows = hidden.view(requests, self.block_size, -1)[:, 1:].reshape(-1, hidden.shape[-1])
        logp, token = self._head.marginals(rows)
        shape = (requests, self.shape.depth, self.shape.ranks)
        return grow(logp.view(shape), token.view(shape), root, batch.seq_lens, self.shape.budget)

    def _draft(self, batch: Any, draft_input: DFlashDraftInput, root: torch.Tensor) -> torch.Tensor:
        """The drafter's hidden states [requests × block, size], its block's KV slots given back at once."""
        requests, block = root.shape[0], self.block_size
        prefix = draft_input.draft_seq_lens.to(torch.int32)
        table = self.draft_model_runner.req_to_token_pool.req_to_token
        allocator = self.draft_model_runner.token_to_kv_pool_allocator
        before = allocator.backup_state()
        try:
            slots = allocator.alloc(requests * block)
            if slots is None:
                raise RuntimeError(f"DDTree: no KV slots for {requests} draft blocks of {block} tokens")
            end = prefix + block
            assign_req_to_token_pool_func(batch.req_pool_indices, table, prefix, end, slots, requests)
            forward = self._draft_batch(batch, root, prefix, slots)
            hidden = self.draft_model_runner.forward(forward).logits_output.hidden_states
        finally:
            allocator.restore_state(before)
        if hidden is None:
            raise RuntimeError("DDTree: the drafter returned no hidden states")
        return hidden

    def _draft_batch(
        self, batch: Any, root: torch.Tensor, prefix: torch.Tensor, slots: torch.Tensor
    ) -> ForwardBatch:
        """The drafter's pass over [current token, mask, mask, …] of each request."""
        runner, requests = self.draft_model_runner, root.shape[0]
        ids = self._draft_ids(requests)
        ids[:, 0].copy_(root)
        embeds = self.target_worker.model_runner.model.get_input_embeddings()(ids)
        prefix_cpu = self._draft_prefix_cpu(batch)
        return ForwardBatch(
            forward_mode=ForwardMode.TARGET_VERIFY,
            batch_size=requests,
            input_ids=ids.view(-1),
            req_pool_indices=batch.req_pool_indices,
            seq_lens=prefix,
            out_cache_loc=slots,
            seq_lens_sum=int(prefix_cpu.sum()),
            seq_lens_cpu=prefix_cpu,
            positions=(batch.seq_lens.unsqueeze(1) + self._block_pos_offsets).view(-1),
            req_to_token_pool=runner.req_to_token_pool,
            token_to_kv_pool=runner.token_to_kv_pool,
            attn_backend=runner.attn_backend,
            input_embeds=embeds.view(-1, embeds.shape[-1]),
            spec_algorithm=SpeculativeAlgorithm.DFLASH,
            spec_info=self._draft_block_spec_info,
            capture_hidden_mode=CaptureHiddenMode.NULL,
        )

    def _draft_ids(self, requests: int) -> torch.Tensor:
        """[requests, block] of mask tokens; the caller writes the current tokens into column 0."""
        if self._block_ids is None or self._block_ids.shape[0] < requests:
            size = max(requests, int(self.server_args.max_running_requests or 0))
            self._block_ids = torch.full(
                (size, self.block_size), int(self._mask_token_id), dtype=torch.int64, device=self.device
            )
        return self._block_ids[:requests]

    def _draft_prefix_cpu(self, batch: Any) -> torch.Tensor:
        """Tokens that the drafter sees of each request; known on the host, so nothing is read back."""
        prefix = batch.seq_lens_cpu.to(torch.int32)
        return prefix.clamp(max=self.draft_window_size) if self.use_compact_draft_cache else prefix

    def _output_head(self) -> Any:
        head = getattr(self.target_worker.model_runner.model, "lm_head", None)
        if head is None or not hasattr(head, "weight") or not hasattr(head, "shard_indices"):
            raise ValueError("DDTree: got a target without a vocab-parallel lm_head, expected one")
        return head

    # --- verify

    def _verify(self, batch: Any, tree: DraftTree, **kwargs: Any) -> GenerationBatchResult:
        verify_input = DDTreeVerifyInput.of(tree)
        verify_input.prepare(batch, self.shape.depth)
        batch.forward_mode = ForwardMode.TARGET_VERIFY
        batch.spec_info = verify_input
        batch.return_hidden_states = False
        worker_batch = batch.get_model_worker_batch()
        self._clock.mark("built")
        result = self.target_worker.forward_batch_generation(worker_batch, is_verify=True, **kwargs)
        self._clock.mark("verified")
        if result.logits_output.hidden_states is None:
            raise RuntimeError("DDTree: the target returned no hidden states for the drafter")
        return result

    def _walk(self, batch: Any, tree: DraftTree, logits_output: Any) -> Walked:
        choice = self._sampler.choose(logits_output.next_token_logits, batch, tree)
        return read_walk(walk(tree, choice, self.shape.depth).cpu().numpy())

    # --- commit

    def _commit(
        self, batch: Any, draft_input: DFlashDraftInput, walked: Walked, result: GenerationBatchResult
    ) -> GenerationBatchResult:
        lengths, current = self._append_outputs(batch.reqs, walked)
        commit = plan(walked.rows, lengths, batch.seq_lens_cpu.numpy(), self.shape.width)
        positions, kept, freed, lengths_gpu, verified = self._send(commit, lengths, current)
        slots = batch.out_cache_loc[kept]
        batch.token_to_kv_pool_allocator.free(batch.out_cache_loc[freed])
        batch.out_cache_loc = slots
        self._list_slots(batch, slots, lengths_gpu, lengths)
        features = result.logits_output.hidden_states
        hidden = features.view(-1, features.shape[-1])[kept]
        self._feed_drafter(
            batch, draft_input, hidden, positions, slots, lengths_gpu, int(commit.positions.max())
        )
        draft_input.verified_id = verified
        batch.spec_info = draft_input
        batch.forward_mode = ForwardMode.DECODE
        result.logits_output.hidden_states = None
        accepted = [int(length) - 1 for length in lengths]
        self._tell(batch.reqs, accepted, walked.nodes)
        return GenerationBatchResult(
            logits_output=result.logits_output,
            next_token_ids=verified,
            num_accepted_drafts=sum(accepted),
            num_accepted_drafts_per_req_cpu=accepted,
            can_run_cuda_graph=result.can_run_cuda_graph,
        )

    def _append_outputs(self, reqs: Sequence[Any], walked: Walked) -> tuple[np.ndarray, list[int]]:
        """Gives each request its tokens until it ends; how many it took, and its current token."""
        lengths, current = np.zeros(len(reqs), dtype=np.int64), []
        rows = zip(reqs, walked.committed.tolist(), walked.tokens.tolist(), strict=True)
        for index, (req, committed, tokens) in enumerate(rows):
            for token in tokens[:committed]:
                req.output_ids.append(token)
                lengths[index] += 1
                req.check_finished()
                if req.finished():
                    break
            taken = int(lengths[index])
            req.kv_committed_len += taken
            req.kv_allocated_len = req.kv_committed_len
            req.spec_verify_ct += 1
            req.spec_accepted_drafts += taken - 1
            req.update_spec_acceptance_histogram(taken - 1)
            current.append(req.output_ids[-1])
        return lengths, current

    def _send(self, commit: Commit, lengths: np.ndarray, current: list[int]) -> tuple[torch.Tensor, ...]:
        """One copy to the GPU: positions, the rows they belong to, freed rows, lengths, current tokens.

        Positions come first, where a kernel may count on their alignment. The pinned buffer is free again by
        the next step's read-back, which waits for this copy.
        """
        parts = (commit.positions, commit.kept, commit.freed, lengths, np.asarray(current, dtype=np.int64))
        sizes = [part.shape[0] for part in parts]
        if self._staging is None or self._staging.shape[0] < sum(sizes):
            self._staging = torch.empty(
                2 * sum(sizes), dtype=torch.int64, pin_memory=torch.cuda.is_available()
            )
        staged = self._staging[: sum(sizes)]
        np.concatenate(parts, out=staged.numpy())
        return torch.split(staged.to(self.device, non_blocking=True), sizes)

    def _list_slots(
        self, batch: Any, slots: torch.Tensor, lengths_gpu: torch.Tensor, lengths: np.ndarray
    ) -> None:
        """Re-lists the path's slots in order after the prefix; the cached keys and values stay where they
        are.
        """
        end = batch.seq_lens + lengths_gpu.to(batch.seq_lens.dtype)
        table = batch.req_to_token_pool.req_to_token
        assign_req_to_token_pool_func(
            batch.req_pool_indices, table, batch.seq_lens, end, slots, len(batch.reqs)
        )
        batch.seq_lens.copy_(end)
        batch.seq_lens_cpu.add_(torch.from_numpy(lengths).to(batch.seq_lens_cpu.dtype))
        batch.seq_lens_sum += int(lengths.sum())

    def _feed_drafter(
        self,
        batch: Any,
        draft_input: DFlashDraftInput,
        hidden: torch.Tensor,
        positions: torch.Tensor,
        slots: torch.Tensor,
        lengths_gpu: torch.Tensor,
        last_position: int,
    ) -> None:
        """Writes the path's context features into the drafter's KV cache, at the path's own slots."""
        if self.use_compact_draft_cache or self._fused_kv_helper is None:
            draft_input.target_hidden = hidden
            draft_input.ctx_lens = lengths_gpu.to(torch.int32)
            self._append_target_hidden_to_draft_kv(batch, draft_input)
            return
        context = self.draft_model.project_target_hidden(hidden)
        self._write_draft_kv(context, positions, slots, last_position)
        draft_input.draft_seq_lens = batch.seq_lens.to(torch.int32)
        draft_input.ctx_lens = torch.zeros_like(draft_input.draft_seq_lens)
        draft_input.target_hidden = hidden[:0]

    def _write_draft_kv(
        self, context: torch.Tensor, positions: torch.Tensor, slots: torch.Tensor, last_position: int
    ) -> None:
        helper, pool = self._fused_kv_helper, self.draft_model_runner.token_to_kv_pool
        ensure = getattr(helper.rotary_emb, "_ensure_cos_sin_cache_length", None)
        if callable(ensure):
            ensure(last_position)
        table = helper.rotary_emb.cos_sin_cache
        if last_position >= table.shape[0]:
            raise RuntimeError(
                f"DDTree: position {last_position} is beyond the drafter's {table.shape[0]} rotations"
            )
        projected = torch.einsum("th,loh->lto", context, helper.batched_kv_weight)
        for index, layer in enumerate(self.draft_model.layers):
            key, value = _fused_norm_rope(
                projected[index],
                helper.k_norm_weights[index],
                table,
                positions,
                helper.num_kv_heads,
                helper.head_dim,
                helper.rotary_dim,
                helper.eps_values[index],
            )
            attention = layer.self_attn.attn
            pool.set_kv_buffer(attention, slots, key, value, attention.k_scale, attention.v_scale)

    # --- tell

    def _make_gauges(self) -> Optional[StepGauges]:
        if self.tp_rank != 0 or not getattr(self.server_args, "enable_metrics", False):
            return None
        return StepGauges(self.shape, {"model_name": self.server_args.served_model_name or ""})

    def _tell(self, reqs: Sequence[Any], accepted: list[int], nodes: np.ndarray) -> None:
        times = self._clock.read()
        record(reqs, accepted, nodes.tolist(), times)
        if self._gauges is not None:
            self._gauges.add(accepted, nodes.tolist(), times)


class StepClock:
    """GPU times between a step's marks; read after the step's read-back, so reading waits for nothing."""

    def __init__(self) -> None:
        names = ("start", "drafted", "built", "verified")
        self._marks = {name: torch.cuda.Event(enable_timing=True) for name in names}

    def mark(self, name: str) -> None:
        self._marks[name].record()

    def read(self) -> StepTimes:
        start, drafted, built, verified = self._marks.values()
        return StepTimes(
            draft_ms=start.elapsed_time(drafted),
            build_ms=drafted.elapsed_time(built),
            verify_ms=built.elapsed_time(verified),
        )
