"""Penalties and minimum lengths on a tree: each row is penalised for the output that ends in that row.

A plain decode step penalises what was said so far; in a tree, "so far" also holds the row's own path. Counts
are taken from the requests' output tokens at each step, so requests may join, leave or be retracted between
steps.
"""

from __future__ import annotations

from typing import Any, Sequence

import torch


def apply_penalties(
    logits: torch.Tensor, reqs: Sequence[Any], token: torch.Tensor, parent: torch.Tensor, depth: int
) -> None:
    """Changes logits [requests × width, vocabulary] in place: frequency, presence, repetition, minimum
    length.

    token, parent: [requests, width], the trees. Requests with neutral settings keep their logits as they are.
    """
    rows = logits.view(len(reqs), token.shape[1], -1)
    path, real = path_tokens(token, parent, depth)
    said = _said(reqs, rows.shape[-1], rows.device)
    frequency, presence, repetition = _settings(reqs, rows.device)
    first = real & ~_seen_before(path, real) & (_at(said, path) == 0)
    heard = said > 0
    rows.sub_((frequency * said + presence * heard).unsqueeze(1))
    extra = frequency[:, :, None] * real + presence[:, :, None] * first
    rows.scatter_add_(2, path, -extra.to(rows.dtype))
    rows.copy_(_scaled(rows, torch.where(heard, repetition, torch.ones_like(repetition)).unsqueeze(1)))
    value = rows.gather(2, path)
    rows.scatter_add_(2, path, (_scaled(value, repetition[:, :, None]) - value) * first)
    _hold_stop_tokens(rows, reqs, real.sum(dim=-1))


def path_tokens(token: torch.Tensor, parent: torch.Tensor, depth: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The tokens on each row's path, itself first, the root (already output) left out.

    Gives ids and which of them count, both [requests, width, depth]; an id that does not count is 0.
    """
    row = torch.arange(token.shape[1], device=token.device).expand_as(token)
    ids, counts = [], []
    for _ in range(depth):
        up = parent.gather(1, row).to(torch.int64)
        counts.append(up >= 0)
        ids.append(token.gather(1, row).masked_fill(up < 0, 0))
        row = up.clamp(min=0)
    return torch.stack(ids, dim=-1), torch.stack(counts, dim=-1)


def _seen_before(path: torch.Tensor, real: torch.Tensor) -> torch.Tensor:
    """Whether a path's token also stands nearer to the row, where it is counted first."""
    same = (path.unsqueeze(-1) == path.unsqueeze(-2)) & real.unsqueeze(-1) & real.unsqueeze(-2)
    return torch.tril(same, diagonal=-1).any(dim=-1)


def _said(reqs: Sequence[Any], vocab: int, device: torch.device) -> torch.Tensor:
    """How often each request has put out each token: float32 [requests, vocabulary]."""
    flat = [index * vocab + token for index, req in enumerate(reqs) for token in req.output_ids]
    counts = torch.zeros(len(reqs) * vocab, dtype=torch.float32, device=device)
    where = torch.tensor(flat, dtype=torch.int64).to(device, non_blocking=True)
    counts.index_add_(0, where, torch.ones_like(where, dtype=torch.float32))
    return counts.view(len(reqs), vocab)


def _settings(reqs: Sequence[Any], device: torch.device) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    params = [req.sampling_params for req in reqs]
    names = ("frequency_penalty", "presence_penalty", "repetition_penalty")
    table = torch.tensor([[getattr(one, name) for name in names] for one in params], dtype=torch.float32)
    frequency, presence, repetition = table.to(device, non_blocking=True).unsqueeze(-1).unbind(dim=1)
    return frequency, presence, repetition


def _at(said: torch.Tensor, path: torch.Tensor) -> torch.Tensor:
    return said.gather(1, path.flatten(1)).view_as(path)


def _scaled(value: torch.Tensor, penalty: torch.Tensor) -> torch.Tensor:
    return torch.where(value < 0, value * penalty, value / penalty)


def _hold_stop_tokens(rows: torch.Tensor, reqs: Sequence[Any], beyond: torch.Tensor) -> None:
    """No stop token before min_new_tokens; beyond: [requests, width], path tokens after the output so far."""
    least = [req.sampling_params.min_new_tokens for req in reqs]
    vocab = rows.shape[-1]
    stops = [
        sorted(_stop_tokens(req, vocab)) if count else [] for req, count in zip(reqs, least, strict=True)
    ]
    most = max(len(ids) for ids in stops)
    if most == 0:
        return
    missing = [count - len(req.output_ids) for req, count in zip(reqs, least, strict=True)]
    missing = torch.tensor([count if ids else 0 for count, ids in zip(missing, stops, strict=True)])
    padded = torch.tensor([ids + ids[:1] * (most - len(ids)) if ids else [0] * most for ids in stops])
    ids = padded.to(rows.device, non_blocking=True).unsqueeze(1).expand(-1, rows.shape[1], -1)
    held = beyond < missing.to(rows.device, non_blocking=True).unsqueeze(1)
    value = rows.gather(2, ids)
    rows.scatter_(2, ids, value.masked_fill(held.unsqueeze(-1), float("-inf")))


def _stop_tokens(req: Any, vocab: int) -> set[int]:
    tokenizer = req.tokenizer
    ids = set(req.sampling_params.stop_token_ids or ())
    if tokenizer is not None:
        ids |= set(getattr(tokenizer, "additional_stop_token_ids", None) or ())
        ids |= {tokenizer.eos_token_id} - {None}
    return {int(one) for one in ids if 0 <= int(one) < vocab}
