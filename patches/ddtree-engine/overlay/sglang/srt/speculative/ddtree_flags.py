"""DDTree's two flags: what they mean, which other settings they exclude, and the widths that follow.

No torch and no SGLang import: the argument parser, the scheduler and tests on a CPU all read this file.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

BUDGET_FLAG = "--speculative-ddtree-budget"
CAP_FLAG = "--speculative-ddtree-topk-cap"
MAX_BUDGET = 1024  # one GPU program holds a whole tree; wider ones belong to no measured use
REFUSED_REQUEST_FIELDS = {
    "json_schema": "a JSON schema",
    "regex": "a regular expression",
    "ebnf": "an EBNF grammar",
    "structural_tag": "a structural tag",
}


@dataclass(frozen=True)
class TreeShape:
    """The sizes that every step shares.

    budget: tree nodes without the root. ranks: candidates kept at each depth. depth: tokens that the drafter
    proposes in a row (its block size less the current token).
    """

    budget: int
    ranks: int
    depth: int

    @property
    def width(self) -> int:
        """Rows of one request in the verify pass: the root and its tree, padding included."""
        return self.budget + 1

    @property
    def path(self) -> int:
        """The most tokens that one step can commit: a full path and the target's own next token."""
        return self.depth + 1


def shape_of(server_args: Any, block_size: int, vocab_size: int) -> TreeShape:
    """The tree's sizes for a drafter's block size; ranks beyond the budget can never enter a tree."""
    budget = int(server_args.speculative_ddtree_budget)
    ranks = min(int(server_args.speculative_ddtree_topk_cap), budget, int(vocab_size))
    return TreeShape(budget=budget, ranks=ranks, depth=int(block_size) - 1)


def enabled(server_args: Any) -> bool:
    return getattr(server_args, "speculative_ddtree_budget", None) is not None


def tokens_per_step(server_args: Any) -> Optional[int]:
    """KV slots that a request needs in one step; the stock number when DDTree is off.

    The draft block and the tree are allocated one after the other, so the larger of the two counts.
    """
    block = server_args.speculative_num_draft_tokens
    if not enabled(server_args):
        return block
    return max(int(block or 0), int(server_args.speculative_ddtree_budget) + 1)


def resolve(server_args: Any) -> None:
    """Refuses what DDTree cannot honour and fills in the cap; without a budget nothing is read or set.

    Raises ValueError before any weight is loaded. Without a cap, every rank that can enter a tree is kept.
    """
    budget, cap = server_args.speculative_ddtree_budget, server_args.speculative_ddtree_topk_cap
    if budget is None:
        if cap is not None:
            raise ValueError(f"{CAP_FLAG}: got {cap} without {BUDGET_FLAG}, expected both or neither")
        return
    for refusal in (
        _algorithm(server_args),
        _numbers(budget, cap),
        _memory(server_args),
        _attention(server_args),
    ):
        if refusal:
            raise ValueError(refusal)
    if cap is None:
        server_args.speculative_ddtree_topk_cap = budget


def _algorithm(server_args: Any) -> Optional[str]:
    name = server_args.speculative_algorithm
    if name != "DFLASH":
        return f"{BUDGET_FLAG}: got --speculative-algorithm {name}, expected DFLASH, whose drafter it needs"
    return None


def _numbers(budget: int, cap: Optional[int]) -> Optional[str]:
    if not 1 <= budget <= MAX_BUDGET:
        return f"{BUDGET_FLAG}: got {budget}, expected 1 to {MAX_BUDGET} nodes"
    if cap is not None and not 1 <= cap <= MAX_BUDGET:
        return f"{CAP_FLAG}: got {cap}, expected 1 to {MAX_BUDGET} candidates a depth"
    return None


def _memory(server_args: Any) -> Optional[str]:
    page = server_args.page_size
    if page not in (None, 1):
        return (
            f"{BUDGET_FLAG}: got --page-size {page}, expected 1: an accepted path is re-listed slot by slot, "
            "and a page would hold slots of rejected branches"
        )
    return None


def _attention(server_args: Any) -> Optional[str]:
    for backend in server_args.get_attention_backends():
        if backend != "triton":
            return f"{BUDGET_FLAG}: got attention backend {backend}, expected triton, which takes a tree mask"
    if getattr(server_args, "enable_two_batch_overlap", False):
        return f"{BUDGET_FLAG}: got --enable-two-batch-overlap, expected it off: it splits a tree's rows"
    return None


def refusal_of_target(attn_backend: Any, sliding_window: Optional[int]) -> Optional[str]:
    """Why this target cannot be verified with a tree, or None.

    Window masks count rows, not depths, and recurrent states follow one line of tokens: either would give a
    branch another past than its own.
    """
    if sliding_window is not None and sliding_window > 0:
        return (
            f"DDTree: got a target with sliding-window attention ({sliding_window}), expected full attention"
        )
    if hasattr(attn_backend, "update_mamba_state_after_mtp_verify"):
        return "DDTree: got a target with recurrent layers, expected attention only"
    return None


def refusal_of_request(req: Any) -> Optional[str]:
    """Why a request cannot be served with a tree, or None."""
    if getattr(req, "return_logprob", False):
        return "DDTree gives no log-probabilities: send the request without return_logprob"
    for field, words in REFUSED_REQUEST_FIELDS.items():
        if getattr(req.sampling_params, field, None) is not None:
            return f"DDTree cannot follow {words}: send the request without {field}"
    if getattr(req, "return_hidden_states", False):
        return "DDTree keeps no hidden states: send the request without return_hidden_states"
    return None
