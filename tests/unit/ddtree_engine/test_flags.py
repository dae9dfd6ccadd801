from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest

from .overlay import load

flags = load("ddtree_flags")


@dataclass
class Args:
    """The server arguments that the flags look at, as SGLang has them after its own defaults."""

    speculative_ddtree_budget: int | None = 16
    speculative_ddtree_topk_cap: int | None = 4
    speculative_algorithm: str | None = "DFLASH"
    speculative_num_draft_tokens: int | None = 8
    page_size: int = 1
    backends: tuple[str, str] = ("triton", "triton")
    enable_two_batch_overlap: bool = False

    def get_attention_backends(self) -> tuple[str, str]:
        return self.backends


@pytest.mark.parametrize(
    ("changed", "told"),
    [
        ({"speculative_algorithm": "EAGLE"}, "got --speculative-algorithm EAGLE, expected DFLASH"),
        ({"speculative_algorithm": None}, "got --speculative-algorithm None, expected DFLASH"),
        ({"speculative_ddtree_budget": 0}, "--speculative-ddtree-budget: got 0, expected 1 to 1024"),
        ({"speculative_ddtree_budget": 1025}, "--speculative-ddtree-budget: got 1025, expected 1 to 1024"),
        ({"speculative_ddtree_topk_cap": 0}, "--speculative-ddtree-topk-cap: got 0, expected 1 to 1024"),
        ({"page_size": 16}, "got --page-size 16, expected 1"),
        ({"backends": ("fa3", "triton")}, "got attention backend fa3, expected triton"),
        ({"backends": ("triton", "flashinfer")}, "got attention backend flashinfer, expected triton"),
        ({"enable_two_batch_overlap": True}, "got --enable-two-batch-overlap, expected it off"),
        ({"speculative_ddtree_budget": None}, "--speculative-ddtree-topk-cap: got 4 without"),
    ],
)
def test_a_setting_that_a_tree_cannot_honour_is_refused_by_name(
    changed: dict[str, object], told: str
) -> None:
    with pytest.raises(ValueError) as refusal:
        flags.resolve(Args(**changed))  # type: ignore[arg-type]
    assert told in str(refusal.value)


def test_without_a_budget_nothing_is_looked_at_or_changed() -> None:
    args = Args(None, None, speculative_algorithm="EAGLE", page_size=64, backends=("fa3", "fa3"))
    before = Args(**vars(args))
    flags.resolve(args)
    assert before == args


def test_a_missing_cap_becomes_the_budget() -> None:
    args = Args(speculative_ddtree_topk_cap=None)
    flags.resolve(args)
    assert args.speculative_ddtree_topk_cap == 16


@pytest.mark.parametrize(
    ("budget", "cap", "vocab", "ranks"),
    [(16, 4, 2048, 4), (7, 8, 2048, 7), (64, 64, 32, 32), (1, 8, 2048, 1)],
)
def test_no_rank_is_kept_that_cannot_enter_a_tree(budget: int, cap: int, vocab: int, ranks: int) -> None:
    shape = flags.shape_of(Args(budget, cap), block_size=8, vocab_size=vocab)
    assert (budget, ranks, 7, budget + 1, 8) == (
        shape.budget,
        shape.ranks,
        shape.depth,
        shape.width,
        shape.path,
    )


@pytest.mark.parametrize(("budget", "tokens"), [(None, 8), (3, 8), (7, 8), (8, 9), (64, 65)])
def test_a_step_reserves_the_larger_of_block_and_tree(budget: int | None, tokens: int) -> None:
    assert tokens == flags.tokens_per_step(Args(budget))


@dataclass
class Request:
    """A request with SGLang's field names; nothing asked for."""

    return_logprob: bool = False
    return_hidden_states: bool = False
    sampling_params: SimpleNamespace = field(default_factory=SimpleNamespace)


@pytest.mark.parametrize(
    ("request_", "told"),
    [
        (Request(return_logprob=True), "no log-probabilities"),
        (Request(return_hidden_states=True), "no hidden states"),
        (Request(sampling_params=SimpleNamespace(regex="a+")), "cannot follow a regular expression"),
        (Request(sampling_params=SimpleNamespace(json_schema="{}")), "cannot follow a JSON schema"),
        (Request(sampling_params=SimpleNamespace(ebnf="root ::= x")), "cannot follow an EBNF grammar"),
        (Request(sampling_params=SimpleNamespace(structural_tag="{}")), "cannot follow a structural tag"),
    ],
)
def test_a_request_that_a_tree_cannot_serve_is_refused_in_words(request_: Request, told: str) -> None:
    assert told in (flags.refusal_of_request(request_) or "")


def test_an_ordinary_request_is_not_refused() -> None:
    plain = SimpleNamespace(json_schema=None, regex=None, ebnf=None, structural_tag=None)
    assert flags.refusal_of_request(Request(sampling_params=plain)) is None


def test_a_target_whose_past_is_not_the_path_alone_is_refused() -> None:
    recurrent = SimpleNamespace(update_mamba_state_after_mtp_verify=None)
    assert "sliding-window attention (512)" in flags.refusal_of_target(object(), 512)
    assert "recurrent layers" in flags.refusal_of_target(recurrent, None)
    assert flags.refusal_of_target(object(), None) is None
    assert flags.refusal_of_target(object(), -1) is None
