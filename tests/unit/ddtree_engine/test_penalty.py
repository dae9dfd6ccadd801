from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from .overlay import load

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.proof
penalty = load("ddtree_penalty")
VOCAB, DEPTH = 12, 3
TOKEN = torch.tensor([[3, 5, 5, 7, 3], [2, 2, 2, 9, 2]])
PARENT = torch.tensor([[-1, 0, 1, 2, 0], [-1, 0, 1, 0, -1]], dtype=torch.int32)


def request(said: list[int], **params: Any) -> Any:
    neutral = {
        "frequency_penalty": 0.0,
        "presence_penalty": 0.0,
        "repetition_penalty": 1.0,
        "min_new_tokens": 0,
    }
    tokenizer = SimpleNamespace(eos_token_id=0, additional_stop_token_ids=None)
    settings = SimpleNamespace(**{**neutral, "stop_token_ids": None, **params})
    return SimpleNamespace(output_ids=said, sampling_params=settings, tokenizer=tokenizer)


def path(batch: int, row: int) -> list[int]:
    """The tokens of a row's path, root left out."""
    found = []
    while row > 0 and PARENT[batch, row] >= 0:
        found.append(int(TOKEN[batch, row]))
        row = int(PARENT[batch, row])
    return found


def plain(logits: Any, req: Any, output: list[int]) -> Any:
    """One plain decode step's penalties after `output`: additive, then scaling, then the minimum length."""
    params, logits = req.sampling_params, logits.clone()
    for token in set(output):
        count = output.count(token)
        logits[token] -= params.frequency_penalty * count + params.presence_penalty
    for token in set(output):
        value, scale = logits[token], params.repetition_penalty
        logits[token] = value * scale if value < 0 else value / scale
    if len(output) < params.min_new_tokens:
        for token in {0, *(params.stop_token_ids or ())}:
            logits[token] = float("-inf")
    return logits


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"frequency_penalty": 0.7},
        {"presence_penalty": 1.2},
        {"repetition_penalty": 1.4},
        {"frequency_penalty": 0.3, "presence_penalty": 0.5, "repetition_penalty": 1.1},
        {"min_new_tokens": 5, "stop_token_ids": {4, 9}},
        {"min_new_tokens": 4, "frequency_penalty": 0.4},
    ],
)
def test_each_row_is_penalised_as_a_plain_step_after_its_own_path(params: dict[str, Any]) -> None:
    reqs = [request([1, 3, 3], **params), request([2], repetition_penalty=1.3)]
    draw = torch.Generator().manual_seed(len(params))
    before = torch.randn(2 * 5, VOCAB, generator=draw) * 3
    after = before.clone()
    penalty.apply_penalties(after, reqs, TOKEN, PARENT, DEPTH)
    for batch, req in enumerate(reqs):
        for row in range(5):
            if row and PARENT[batch, row] < 0:
                continue  # padding is never walked
            expected = plain(before[batch * 5 + row], req, [*req.output_ids, *path(batch, row)])
            torch.testing.assert_close(expected, after[batch * 5 + row])


def test_a_path_s_tokens_leave_the_root_and_padding_out() -> None:
    ids, counts = penalty.path_tokens(TOKEN, PARENT, DEPTH)
    for batch in range(2):
        for row in range(5):
            assert path(batch, row) == ids[batch, row][counts[batch, row]].tolist()
