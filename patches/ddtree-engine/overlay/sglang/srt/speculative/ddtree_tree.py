"""Draft trees on the GPU: grown, masked and walked for a whole batch, one program a request, nothing read
back.

A tree holds the `budget` likeliest prefixes under the drafter's per-position marginals (arXiv 2604.12989):
the likeliest waiting prefix is taken, and its next sibling and its first child begin to wait. Row 0 is the
root (the current token), rows 1… are nodes in the order taken, so a parent always comes before its children.
Rows beyond the last node are padding: parent -1, the root's token and position.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

MASK_BLOCK = 1024
LEAST_REQUESTS = 64  # batches up to this size share one compiled mask kernel


@dataclass(frozen=True)
class DraftTree:
    """One tree a request; every tensor is [requests, width].

    token: int64, the token of each row. position: int64, its position in the sequence. parent: int32, the row
    of its parent, -1 for the root and for padding.
    """

    token: torch.Tensor
    position: torch.Tensor
    parent: torch.Tensor


def grow(
    logp: torch.Tensor, token: torch.Tensor, root: torch.Tensor, seq_lens: torch.Tensor, budget: int
) -> DraftTree:
    """Takes the `budget` likeliest prefixes of each request.

    logp: float32 [requests, depth, ranks], each depth's candidates likeliest first; token: int64, their ids,
    the same shape. root: int64 [requests], the current tokens; seq_lens: [requests], the roots' positions.
    """
    requests, depth, ranks = logp.shape
    width = budget + 1
    rows = torch.empty((requests, width), dtype=torch.int64, device=logp.device)
    tree = DraftTree(
        token=rows, position=torch.empty_like(rows), parent=torch.empty_like(rows, dtype=torch.int32)
    )
    block = triton.next_power_of_2(width)
    _grow[(requests,)](
        logp.contiguous(),
        token.contiguous(),
        root,
        seq_lens,
        tree.token,
        tree.position,
        tree.parent,
        budget,
        DEPTH=depth,
        RANKS=ranks,
        BLOCK=block,
        num_warps=max(1, min(8, block // 128)),
    )
    return tree


def mask_size(seq_lens_sum: int, requests: int, width: int) -> int:
    """Booleans of a batch's verify mask: for each request `width` rows over its prefix and its tree."""
    return width * (seq_lens_sum + requests * width)


def mask(parent: torch.Tensor, seq_lens: torch.Tensor, seq_lens_sum: int, depth: int) -> torch.Tensor:
    """Who sees whom: a node its prefix, its ancestors and itself; padding itself alone.

    Flat bool, the requests one after the other, each [width, prefix + width], as the attention backend reads
    it.
    """
    requests, width = parent.shape
    allow = torch.empty(mask_size(seq_lens_sum, requests, width), dtype=torch.bool, device=parent.device)
    _mask[(requests, width)](
        parent,
        seq_lens,
        allow,
        WIDTH=width,
        DEPTH=depth,
        REQUESTS=max(LEAST_REQUESTS, triton.next_power_of_2(requests)),
        COLUMNS=triton.next_power_of_2(width),
        BLOCK=MASK_BLOCK,
        num_warps=4,
    )
    return allow


def walk(tree: DraftTree, choice: torch.Tensor, depth: int) -> torch.Tensor:
    """Follows the target's own choices from the root for as long as they are in the tree.

    choice: integer [requests, width], what the target takes after each row. Gives int32 [requests, 2 + 2 ×
    path] with path = depth + 1: tokens committed, nodes in the tree, the rows walked (0 after the last), and
    the tokens taken.
    """
    requests, width = tree.parent.shape
    found = torch.empty((requests, 2 + 2 * (depth + 1)), dtype=torch.int32, device=choice.device)
    _walk[(requests,)](
        tree.token,
        tree.parent,
        choice.contiguous(),
        found,
        WIDTH=width,
        DEPTH=depth,
        BLOCK=triton.next_power_of_2(width),
        num_warps=1,
    )
    return found


@triton.jit(do_not_specialize_on_alignment=["root", "seq_lens"])
def _grow(
    logp,
    token,
    root,
    seq_lens,
    out_token,
    out_position,
    out_parent,
    budget,
    DEPTH: tl.constexpr,
    RANKS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0).to(tl.int64)
    none = float("-inf")
    logp += request * DEPTH * RANKS
    token += request * DEPTH * RANKS
    out_token += request * (budget + 1)
    out_position += request * (budget + 1)
    out_parent += request * (budget + 1)
    current = tl.load(root + request)
    start = tl.load(seq_lens + request).to(tl.int64)
    tl.store(out_token, current)
    tl.store(out_position, start)
    tl.store(out_parent, -1)

    # Each slot holds one waiting prefix: its score, its parent's score, depth (from 0), rank and parent.
    slot = tl.arange(0, BLOCK)
    score = tl.where(slot == 0, tl.load(logp), none)
    above = tl.zeros([BLOCK], dtype=tl.float32)
    depth = tl.zeros([BLOCK], dtype=tl.int32)
    rank = tl.zeros([BLOCK], dtype=tl.int32)
    parent = tl.zeros([BLOCK], dtype=tl.int32)
    for node in range(1, budget + 1):
        best = tl.max(score, axis=0)
        taken = slot == tl.argmax(score, axis=0)
        live = best > none
        at = tl.sum(tl.where(taken, depth, 0), axis=0)
        which = tl.sum(tl.where(taken, rank, 0), axis=0)
        base = tl.sum(tl.where(taken, above, 0.0), axis=0)
        under = tl.sum(tl.where(taken, parent, 0), axis=0)
        chosen = tl.load(token + at * RANKS + which, mask=live, other=0)
        tl.store(out_token + node, tl.where(live, chosen, current))
        tl.store(out_position + node, start + tl.where(live, at + 1, 0))
        tl.store(out_parent + node, tl.where(live, under, -1))
        # The next sibling waits in the slot just left, the first child in a new one.
        sibling = tl.load(logp + at * RANKS + which + 1, mask=live & (which + 1 < RANKS), other=none)
        child = tl.load(logp + (at + 1) * RANKS, mask=live & (at + 1 < DEPTH), other=none)
        fresh = slot == node
        score = tl.where(taken, base + sibling, tl.where(fresh, best + child, score))
        rank = tl.where(taken, which + 1, rank)
        depth = tl.where(fresh, at + 1, depth)
        above = tl.where(fresh, best, above)
        parent = tl.where(fresh, node, parent)


@triton.jit(do_not_specialize_on_alignment=["seq_lens", "allow"])
def _mask(
    parent,
    seq_lens,
    allow,
    WIDTH: tl.constexpr,
    DEPTH: tl.constexpr,
    REQUESTS: tl.constexpr,
    COLUMNS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    request = tl.program_id(0)
    row = tl.program_id(1)
    others = tl.arange(0, REQUESTS)
    before = tl.sum(tl.load(seq_lens + others, mask=others < request, other=0).to(tl.int64), axis=0)
    prefix = tl.load(seq_lens + request).to(tl.int64)
    parent += request * WIDTH
    allow += WIDTH * (before + request.to(tl.int64) * WIDTH) + row * (prefix + WIDTH)
    real = (row == 0) | (tl.load(parent + row) >= 0)
    column = tl.arange(0, BLOCK)
    for start in range(0, prefix, BLOCK):
        tl.store(allow + start + column, real, mask=start + column < prefix)
    inside = tl.arange(0, COLUMNS)
    seen = inside == row
    ancestor = row
    for _ in range(DEPTH):
        ancestor = tl.load(parent + ancestor, mask=ancestor >= 0, other=-1)
        seen = seen | (inside == ancestor)
    tl.store(allow + prefix + inside, seen, mask=inside < WIDTH)


@triton.jit
def _walk(token, parent, choice, found, WIDTH: tl.constexpr, DEPTH: tl.constexpr, BLOCK: tl.constexpr):
    request = tl.program_id(0).to(tl.int64)
    row = tl.arange(0, BLOCK)
    inside = row < WIDTH
    choice += request * WIDTH
    found += request * (2 + 2 * (DEPTH + 1))
    tokens = tl.load(token + request * WIDTH + row, mask=inside, other=-1)
    parents = tl.load(parent + request * WIDTH + row, mask=inside, other=-1)
    here = 0
    alive = 1
    committed = 0
    for step in range(DEPTH + 1):
        wanted = tl.load(choice + here).to(tl.int64)
        tl.store(found + 2 + step, here * alive)
        tl.store(found + 2 + DEPTH + 1 + step, wanted.to(tl.int32))
        committed += alive
        following = tl.max(tl.where((parents == here) & (tokens == wanted), row, -1), axis=0)
        alive = alive * (following >= 0).to(tl.int32)
        here = tl.where(alive > 0, following, here)
    tl.store(found, committed)
    tl.store(found + 1, tl.sum((parents >= 0).to(tl.int32), axis=0))
