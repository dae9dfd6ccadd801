"""The drafter's marginals: the likeliest tokens of each draft position under the target's own output head."""

from __future__ import annotations

from typing import Any

import torch

CHUNK = 256  # rows a product; bounds the [rows, vocabulary] logits at large batches


class MarginalHead:
    """Top candidates and their log-probabilities, over a head that may be split across tensor-parallel ranks.

    All ranks give the same answer: each sends its best candidates and its normaliser in one all-gather.
    """

    def __init__(self, lm_head: Any, tp_group: Any, ranks: int) -> None:
        shard = lm_head.shard_indices
        self._weight = lm_head.weight
        self._group = tp_group
        self._ranks = ranks
        self._base = int(shard.num_org_elements)
        self._base_start = int(shard.org_vocab_start_index)
        self._added = int(shard.num_added_elements)
        self._added_at = int(shard.num_org_elements_padded)
        self._added_start = int(shard.added_vocab_start_index)

    def marginals(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """For hidden states [rows, size]: log-probabilities float32 and ids int64, both [rows, ranks]."""
        parts = [self._chunk(hidden[at : at + CHUNK]) for at in range(0, hidden.shape[0], CHUNK)]
        if len(parts) == 1:
            return parts[0]
        return torch.cat([part[0] for part in parts]), torch.cat([part[1] for part in parts])

    def _chunk(self, hidden: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        logits = self._logits(hidden.to(self._weight.dtype))
        if self._group.world_size > 1:
            return self._gathered(logits.float())
        if self._ranks == 1:  # one candidate a depth: a chain, whatever its probability
            token = torch.argmax(logits, dim=-1, keepdim=True)
            return torch.zeros_like(token, dtype=torch.float32), self._global(token)
        logp = torch.log_softmax(logits, dim=-1, dtype=torch.float32)
        best, token = torch.topk(logp, self._ranks, dim=-1)
        return best, self._global(token)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        base = torch.matmul(hidden, self._weight[: self._base].T)
        if not self._added:
            return base
        added = self._weight[self._added_at : self._added_at + self._added]
        return torch.cat([base, torch.matmul(hidden, added.T)], dim=-1)

    def _global(self, local: torch.Tensor) -> torch.Tensor:
        if not self._added:
            return local + self._base_start if self._base_start else local
        return torch.where(
            local < self._base, local + self._base_start, local - self._base + self._added_start
        )

    def _gathered(self, logits: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        ranks = min(self._ranks, logits.shape[-1])
        best, token = torch.topk(logits, ranks, dim=-1)
        norm = torch.logsumexp(logits, dim=-1, keepdim=True)
        ids = (
            self._global(token).to(torch.int32).view(torch.float32)
        )  # bits only: gathered, never computed with
        mine = torch.cat([best, ids, norm], dim=-1).contiguous()
        group = self._group.world_size
        everyone = torch.empty((group * mine.shape[0], mine.shape[1]), dtype=mine.dtype, device=mine.device)
        self._group.all_gather_into_tensor(everyone, mine)
        everyone = everyone.view(group, *mine.shape).transpose(0, 1)
        norms = torch.logsumexp(everyone[..., -1], dim=-1, keepdim=True)
        values = everyone[..., :ranks].reshape(mine.shape[0], -1)
        bits = everyone[..., ranks : 2 * ranks].reshape(mine.shape[0], -1)
        best, at = torch.topk(values, self._ranks, dim=-1)
        ids = torch.gather(bits.contiguous().view(torch.int32), 1, at).to(torch.int64)
        return best - norms, ids
