"""The verify width comes from the staged source alone."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from ddtree_ops.lab.reference.verify_width import staged_backend, verify_width

from .conftest import BACKEND, PATCHED, STOCK

STEPWISE = """
class TritonAttnBackend:
    def __init__(self, model_runner):
        self.unrelated = undefined_here()
        args = model_runner.server_args
        tree = args.speculative_ddtree_budget
        if tree is None or model_runner.is_draft_worker:
            self.num_draft_tokens = args.speculative_num_draft_tokens
        else:
            self.num_draft_tokens = tree + 1
        self.after = self.num_draft_tokens * undefined_here()
"""


def args(budget: int | None) -> SimpleNamespace:
    return SimpleNamespace(speculative_num_draft_tokens=8, speculative_ddtree_budget=budget)


@pytest.mark.parametrize(
    ("width", "budget", "draft", "expected"),
    [
        (STOCK, 16, False, 8),
        (STOCK, 16, True, 8),
        (STOCK, None, False, 8),
        (PATCHED, 16, False, 17),
        (PATCHED, 16, True, 8),
        (PATCHED, None, False, 8),
        ("5 * 3", 16, False, 15),
    ],
)
def test_the_width_is_what_the_staged_expression_says(
    width: str, budget: int | None, draft: bool, expected: int
) -> None:
    assert verify_width(BACKEND.format(width=width), args(budget), draft=draft) == expected


@pytest.mark.parametrize(("draft", "expected"), [(False, 17), (True, 8)])
def test_statements_that_the_width_depends_on_are_run_and_no_others(draft: bool, expected: int) -> None:
    assert verify_width(STEPWISE, args(16), draft=draft) == expected


def test_a_source_that_sets_no_width_is_refused() -> None:
    with pytest.raises(LookupError, match=r"does not set self\.num_draft_tokens"):
        verify_width(
            "class TritonAttnBackend:\n    def __init__(self):\n        pass\n", args(16), draft=False
        )


def test_a_source_without_the_backend_is_refused() -> None:
    with pytest.raises(LookupError, match=r"has no TritonAttnBackend\.__init__"):
        verify_width("x = 1\n", args(16), draft=False)


def test_the_first_sglang_on_the_path_is_the_staged_one(
    stage: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    below, above = stage(STOCK), stage(PATCHED)
    monkeypatch.syspath_prepend(str(below))
    monkeypatch.syspath_prepend(str(above))

    assert staged_backend() == above / "sglang/srt/layers/attention/triton_backend.py"
