"""What a backend is given to play with: a model runner, batches, a pool, the process's settings."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import torch

from . import widths
from .cases import Case, Heads

if TYPE_CHECKING:
    from .attention import Engine, Tensors

CONTEXT = 1024  # tokens that a request may have


class Loose(SimpleNamespace):
    """Fields given, None for every other."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return None


def layer(heads: Heads) -> Loose:
    return Loose(
        tp_q_head_num=heads.query,
        tp_k_head_num=heads.kv,
        tp_v_head_num=heads.kv,
        head_dim=heads.key,
        qk_head_dim=heads.key,
        v_head_dim=heads.value,
        scaling=heads.key**-0.5,
        layer_id=0,
        logit_cap=0.0,
        logit_capping_method="tanh",
        sliding_window_size=-1,
        is_cross_attention=False,
        attn_type="decoder",
        xai_temperature_len=-1,
    )


def pad(batch: Any, case: Case) -> Any:
    """The batch as a runner hands it to a graph captured for more requests: slot 0, one token each."""
    if not case.padded:
        return batch
    zeros = torch.zeros(case.padded, dtype=torch.int64, device=batch.seq_lens.device)
    return Loose(
        **{
            **vars(batch),
            "batch_size": case.batch + case.padded,
            "seq_lens": torch.cat([batch.seq_lens, zeros + 1]),
            "seq_lens_sum": batch.seq_lens_sum + case.padded,
            "req_pool_indices": torch.cat([batch.req_pool_indices, zeros]),
        }
    )


def backend_of(engine: Engine, case: Case, tensors: Tensors) -> Any:
    """The target's TritonAttnBackend, built by the tree's own code."""
    heads, pool = case.heads, _pool(tensors)
    engine.tree.spec.speculative_num_draft_tokens = engine.block
    arch = importlib.import_module("sglang.srt.configs.model_config").AttentionArch
    runner = Loose(
        req_to_token_pool=Loose(size=case.batch + case.padded + 1, req_to_token=tensors.slots),
        token_to_kv_pool=pool,
        device=engine.device,
        gpu_id=0,
        is_draft_worker=False,
        server_args=engine.arguments(),
        spec_algorithm=widths.Algorithm(),
        page_size=1,
        dcp_size=1,
        dcp_rank=0,
        kv_cache_dtype=engine.dtype,
        decode_num_tokens_per_req=lambda **_: engine.graph_width,
        kv_index_translator=_Translator(tensors.slots),
        model_config=Loose(
            attention_arch=arch.MLA if heads.value < heads.key else arch.MHA,
            num_attention_heads=heads.query,
            get_max_num_attention_heads=lambda: heads.query,
            get_num_kv_heads=lambda *_: heads.kv,
            head_dim=heads.key,
            v_head_dim=heads.value,
            context_len=CONTEXT,
            is_encoder_decoder=False,
            hf_config=Loose(architectures=[]),
        ),
    )
    return engine.tree.module.TritonAttnBackend(runner)


def batch_of(
    engine: Engine, case: Case, tensors: Tensors, mask: torch.Tensor, lengths: torch.Tensor
) -> Loose:
    """The forward batch of one verify pass, with the fields that a triton backend reads."""
    spec = Loose(custom_mask=mask, draft_token_num=case.width, num_tokens_per_req=case.width)
    return Loose(
        batch_size=case.batch,
        seq_lens=lengths,
        seq_lens_sum=sum(case.prefixes),
        seq_lens_cpu=lengths.cpu(),
        req_pool_indices=torch.arange(1, case.batch + 1, device=engine.device),
        forward_mode=engine.tree.module.ForwardMode.TARGET_VERIFY,
        spec_info=spec,
        token_to_kv_pool=_pool(tensors),
    )


def dummy_of(engine: Engine, tensors: Tensors, held: int) -> Loose:
    """The batch that a runner captures with: slot 0, one token of prefix, a mask of ones."""
    width = engine.graph_width
    ones = torch.ones((held + held * width) * width, dtype=torch.bool, device=engine.device)
    zeros = torch.zeros(held, dtype=torch.int64, device=engine.device)
    return Loose(
        batch_size=held,
        seq_lens=zeros + 1,
        seq_lens_sum=held,
        req_pool_indices=zeros,
        forward_mode=engine.tree.module.ForwardMode.TARGET_VERIFY,
        spec_info=Loose(custom_mask=ones, draft_token_num=width, num_tokens_per_req=width),
        token_to_kv_pool=_pool(tensors),
    )


def metadata(backend: Any, batch: Any, *, capturing: bool) -> None:
    """Capture's or replay's metadata, by whichever of the two interfaces the release has."""
    if hasattr(backend, "init_forward_metadata_out_graph"):
        backend.init_forward_metadata_out_graph(batch, in_capture=capturing)
        return
    common = {
        "bs": batch.batch_size,
        "req_pool_indices": batch.req_pool_indices,
        "seq_lens": batch.seq_lens,
        "encoder_lens": None,
        "forward_mode": batch.forward_mode,
        "spec_info": batch.spec_info,
    }
    if capturing:
        tokens = batch.batch_size * batch.spec_info.draft_token_num
        backend.init_forward_metadata_capture_cuda_graph(num_tokens=tokens, **common)
    else:
        backend.init_forward_metadata_replay_cuda_graph(
            seq_lens_sum=batch.seq_lens_sum, seq_lens_cpu=batch.seq_lens_cpu, **common
        )


class _Translator:
    """Slots as they are: what later releases put between request and pool when nothing is shared."""

    is_translating = False

    def __init__(self, slots: torch.Tensor) -> None:
        self.slots = slots

    def fill_packed_read_stream(
        self, *, req_pool_indices: Any, seq_lens: Any, indptr: Any, out: Any, total_tokens: int = 0
    ) -> None:
        del indptr, total_tokens
        at = 0
        for request, length in zip(req_pool_indices.tolist(), seq_lens.tolist(), strict=True):
            out[at : at + length] = self.slots[request, :length]
            at += length

    def build_index_table(self, *, req_pool_indices: Any, **_: Any) -> Loose:
        return Loose(
            ids=self.slots, row_ids=req_pool_indices, row_stride=self.slots.stride(0), entry_page_size=1
        )

    def index_table_for_batch(self, batch: Any) -> Loose:
        return self.build_index_table(req_pool_indices=batch.req_pool_indices)

    def make_capture_tables(self, *_: Any, **__: Any) -> None:
        return None

    def pack_read_stream(self, plan: Any, **given: Any) -> None:
        del plan
        self.fill_packed_read_stream(**given)


def _pool(tensors: Tensors) -> Loose:
    return Loose(
        start_layer=0,
        get_key_buffer=lambda _: tensors.pool_key,
        get_value_buffer=lambda _: tensors.pool_value,
        get_v_head_dim=lambda: tensors.pool_value.shape[-1],
    )


def settings(spec: Loose) -> dict[str, Any]:
    """The process-wide settings that later releases read instead of their arguments."""
    kernel = Loose(triton_attention_num_kv_splits=8)
    run = Loose(kernel=kernel, dllm=Loose(), deterministic=Loose(enable_deterministic_inference=False))
    parallel = Loose(attn_tp_size=1, attn_tp_rank=0, attn_dcp_size=1, attn_dcp_rank=0)
    return {
        "get_spec": lambda: spec,
        "get_exec": lambda: run,
        "get_parallel": lambda: parallel,
        "get_schedule": lambda: Loose(chunked_prefill_size=8192, page_size=1),
    }
