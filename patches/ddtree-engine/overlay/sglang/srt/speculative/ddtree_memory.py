"""The memory that graph capture will ask for at the tree's width, worked out before it is taken."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from sglang.srt.speculative.ddtree_flags import enabled

GIB = 1 << 30


@dataclass(frozen=True)
class GraphMemory:
    """Bytes of the static buffers that one graph runner and its triton backend allocate."""

    logits: int
    mask: int
    kv_indices: int
    split_logits: int
    embeddings: int

    @property
    def total(self) -> int:
        return self.logits + self.mask + self.kv_indices + self.split_logits + self.embeddings


def graph_memory(
    *,
    tokens: int,
    width: int,
    context_len: int,
    vocab_size: int,
    heads: int,
    splits: int,
    head_dim: int,
    hidden_size: int,
) -> GraphMemory:
    """Sizes for `tokens` rows (largest captured batch × verify width); they follow the stock allocations.

    The mask buffer and the index buffer hold a row for each token over the whole context length.
    """
    return GraphMemory(
        logits=tokens * vocab_size * 4,
        mask=tokens * (context_len + width),
        kv_indices=tokens * context_len * 8,
        split_logits=tokens * heads * splits * (head_dim + 1) * 4,
        embeddings=tokens * hidden_size * 2,
    )


def shortage(need: GraphMemory, free: int, max_bs: int, width: int, context_len: int) -> Optional[str]:
    """What to say when the buffers do not fit, with the numbers and the flags that change them; None when
    they do.
    """
    if need.total <= free:
        return None
    parts = ", ".join(f"{name} {getattr(need, name) / GIB:.2f}" for name in GraphMemory.__dataclass_fields__)
    return (
        f"DDTree: graph capture at batch {max_bs} x verify width {width} and context length {context_len} "
        f"needs {need.total / GIB:.2f} GiB ({parts}), got {free / GIB:.2f} GiB free. Lower "
        "--cuda-graph-max-bs, --context-length, --speculative-ddtree-budget or --mem-fraction-static, or use "
        "--disable-cuda-graph."
    )


def check_graph_memory(runner: Any) -> None:
    """Raises ValueError before capture when a DDTree target's graph buffers cannot fit; stock otherwise."""
    model_runner = runner.model_runner
    if model_runner.is_draft_worker or not enabled(model_runner.server_args):
        return
    import torch

    config, backend = model_runner.model_config, runner.attn_backend
    need = graph_memory(
        tokens=runner.max_num_token,
        width=runner.num_tokens_per_bs,
        context_len=config.context_len,
        vocab_size=config.vocab_size,
        heads=backend.num_head,
        splits=backend.max_kv_splits,
        head_dim=backend.v_head_dim,
        hidden_size=config.hidden_size,
    )
    torch.cuda.empty_cache()
    free, _ = torch.cuda.mem_get_info(model_runner.gpu_id)
    refusal = shortage(need, free, runner.max_bs, runner.num_tokens_per_bs, config.context_len)
    if refusal:
        raise ValueError(refusal)
