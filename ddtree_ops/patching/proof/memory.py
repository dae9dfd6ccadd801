"""What the attention's CUDA-graph buffers take, before anything is allocated; no torch here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Buffers:
    """Bytes of the static buffers that a triton backend allocates for graphs."""

    logits: int
    indices: int
    mask: int

    @property
    def total(self) -> int:
        return self.logits + self.indices + self.mask


def graph_buffers(
    *, batch: int, width: int, context: int, query_heads: int, value_dim: int, kv_splits: int = 8
) -> Buffers:
    """Buffers of `init_cuda_graph_state` for graphs of up to `batch` requests of `width` tokens.

    Logits and their sums are float32 for each token, head and split; indices are int64 for each
    token and position of the context, the mask one byte for each token and position.
    """
    tokens = batch * width
    return Buffers(
        logits=4 * tokens * query_heads * kv_splits * (value_dim + 1),
        indices=8 * tokens * context,
        mask=tokens * (context + width),
    )
