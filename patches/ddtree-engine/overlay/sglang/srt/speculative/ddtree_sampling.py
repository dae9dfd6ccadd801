"""What the target takes after each row of a tree: its argmax, or a draw by its own sampler.

Every row is sampled as a plain decode step would sample it. The walk then follows the draws, so the tokens
that come out have the target's distribution whatever the tree holds.
"""

from __future__ import annotations

import copy
from typing import Any

import torch
from sglang.srt.layers.logits_processor import LogitsProcessorOutput
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.speculative.ddtree_penalty import apply_penalties
from sglang.srt.speculative.ddtree_tree import DraftTree

CHUNK_ELEMENTS = 1 << 28  # logits sampled at once; sorting for top-p takes several copies of them
PER_REQUEST = ("temperatures", "top_ps", "top_ks", "min_ps", "sampling_seed")


class TreeSampler:
    """The target's sampler over the rows of trees."""

    def __init__(self, sampler: Any, tp_group: Any, depth: int) -> None:
        self._sampler = sampler
        self._group = tp_group
        self._depth = depth

    def choose(self, logits: torch.Tensor, batch: Any, tree: DraftTree) -> torch.Tensor:
        """For logits [requests × width, vocabulary], changed in place: the choices, [requests, width]."""
        info = batch.sampling_info
        width = tree.token.shape[1]
        if info is None:
            return torch.argmax(logits, dim=-1).view(-1, width)
        self._adjust(logits, batch, info, tree)
        greedy = torch.argmax(logits, dim=-1)
        if info.is_all_greedy:
            return greedy.view(-1, width)
        rows = _expanded(info, width)
        drawn = self._draw(logits, rows, tree.position.view(-1))
        choice = torch.where(rows.top_ks.view(-1) == 1, greedy, drawn).contiguous()
        if self._group.world_size > 1:
            self._group.broadcast(choice, src=0)  # ranks may differ in the last bit of a probability
        return choice.view(-1, width)

    def _adjust(self, logits: torch.Tensor, batch: Any, info: Any, tree: DraftTree) -> None:
        width = tree.token.shape[1]
        if info.penalizer_orchestrator is not None and info.penalizer_orchestrator.is_required:
            apply_penalties(logits, batch.reqs, tree.token, tree.parent, self._depth)
        if info.logit_bias is not None:
            logits.view(-1, width, logits.shape[-1]).add_(info.logit_bias.unsqueeze(1))
        if info.has_custom_logit_processor:
            apply_custom_logit_processor(logits, info, num_tokens_in_batch=width)

    def _draw(self, logits: torch.Tensor, rows: Any, positions: torch.Tensor) -> torch.Tensor:
        size = max(1, CHUNK_ELEMENTS // logits.shape[-1])
        drawn = []
        for at in range(0, logits.shape[0], size):
            part = slice(at, at + size)
            output = LogitsProcessorOutput(next_token_logits=logits[part])
            drawn.append(self._sampler(output, _cut(rows, part), False, [], [], positions[part]))
        return (drawn[0] if len(drawn) == 1 else torch.cat(drawn)).to(torch.int64)


def _expanded(info: Any, width: int) -> Any:
    """The batch's sampling settings, once for each row; what was applied to the logits before is left out."""
    rows = copy.copy(info)
    for name in PER_REQUEST:
        value = getattr(info, name, None)
        if value is not None:
            setattr(rows, name, torch.repeat_interleave(value, width, dim=0))
    rows.has_custom_logit_processor = False
    rows.logit_bias = None
    return rows


def _cut(rows: Any, part: slice) -> Any:
    if part.start == 0 and part.stop >= rows.temperatures.shape[0]:
        return rows
    cut = copy.copy(rows)
    for name in PER_REQUEST:
        value = getattr(rows, name, None)
        if value is not None:
            setattr(cut, name, value[part])
    return cut
