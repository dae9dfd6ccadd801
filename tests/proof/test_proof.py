"""The proof finds the fault in the stock release, none in the patched one, and names what it finds."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch", reason="needs the [proof] extra: torch and triton")
pytest.importorskip("triton", reason="needs the [proof] extra: torch and triton")

from ddtree_ops.patching.proof import attention, compare, prove, selftest, stage  # noqa: E402 - after the skip
from ddtree_ops.patching.proof.bundle import script  # noqa: E402
from ddtree_ops.patching.proof.cases import SMALL, Case, known_fault  # noqa: E402

pytestmark = pytest.mark.filterwarnings(
    "ignore::RuntimeWarning", "ignore::UserWarning", "ignore::DeprecationWarning"
)


def fault(mode: str = "eager", budget: int = 16) -> Case:
    """The known fault's batch in another mode, or its trees cut to a smaller budget."""
    known = known_fault()
    trees = tuple(tree[: budget + 1] for tree in known.trees)
    return replace(known, mode=mode, budget=budget, trees=trees)


def verdict(roots, case: Case, block: int = 8):
    roots = roots if isinstance(roots, tuple) else (roots,)
    engine = attention.Engine(attention.Tree(roots), block, case.budget, "cpu", torch.float32)
    return compare.verdict(engine, case)


def planted(
    patched, tmp_path, old: str, new: str, file: str = "sglang/srt/layers/attention/triton_backend.py"
):
    """The patched tree with one mistake in it."""
    path = tmp_path / file
    path.parent.mkdir(parents=True, exist_ok=True)
    text = (patched[0] / file).read_text(encoding="utf-8")
    assert text.count(old) == 1
    path.write_text(text.replace(old, new), encoding="utf-8")
    return (tmp_path, *patched)


def test_width_8_for_17_leaves_33_of_34_rows_wrong_and_18_unwritten(stock) -> None:
    found = verdict(stock, fault())
    assert (found.rows, found.wrong, found.unwritten) == (34, 33, 18)
    assert found.cause.text == "width: 8 rows a request, expected 17"


def test_every_wrong_row_says_what_the_kernel_took_it_for(stock) -> None:
    why = {(one.request, one.row): one.why for one in verdict(stock, fault()).findings}
    assert why[0, 1] == "stride: mask rows of 13 instead of 22"
    assert why[0, 8] == "width: taken for row 0 of request 1"
    assert why[1, 0] == "width: rows 8 and up of a request belong to nobody"


@pytest.mark.parametrize("mode", ["eager", "capture", "replay"])
def test_the_patched_release_gets_every_row_right(patched, mode) -> None:
    found = verdict(patched, fault(mode))
    assert (found.rows, found.wrong, found.error) == (34, 0, "")
    assert found.worst < 1e-5


def test_a_stock_graph_computes_a_blocks_rows_alone(stock) -> None:
    found = verdict(stock, fault("replay"))
    assert found.cause.text == "graph: captured for 8 tokens a request, expected 17"
    assert found.unwritten >= 18


def test_budget_7_hides_the_fault(stock) -> None:
    assert verdict(stock, fault(budget=7)).wrong == 0


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        (
            "speculative_ddtree_budget + 1",
            "speculative_ddtree_budget",
            "width: 16 rows a request, expected 17",
        ),
        (
            "speculative_ddtree_budget + 1",
            "speculative_ddtree_budget + 2",
            "width: 18 rows a request, expected 17",
        ),
    ],
)
def test_an_off_by_one_in_the_patch_is_caught_and_named(patched, tmp_path, old, new, expected) -> None:
    found = verdict(planted(patched, tmp_path, old, new), fault())
    assert found.wrong > 0
    assert found.cause.text == expected


def test_an_off_by_one_in_the_graphs_width_is_caught_and_named(patched, tmp_path) -> None:
    runner = "sglang/srt/model_executor/cuda_graph_runner.py"
    roots = planted(
        patched, tmp_path, "num_tokens_per_bs = tree_budget + 1", "num_tokens_per_bs = tree_budget", runner
    )
    found = verdict(roots, fault("replay"))
    assert found.cause.text == "graph: captured for 16 tokens a request, expected 17"


def test_a_mask_that_starts_elsewhere_is_an_offset(patched, tmp_path) -> None:
    old = "mask_indptr[1 : bs + 1] = torch.cumsum(seq_mask_len[:bs], dim=0)"
    roots = planted(patched, tmp_path, old, f"{old} + 1")
    assert verdict(roots, fault()).cause.text == "offset: mask of request 1 read at 375, expected 374"


def test_a_mask_buffer_too_small_is_an_error_with_its_numbers(patched, tmp_path) -> None:
    old = "max_num_tokens * (self.max_context_len + (self.num_draft_tokens or 0)),"
    found = verdict(planted(patched, tmp_path, old, "64,"), fault("replay"))
    assert found.error.startswith("ValueError: tree mask of ")
    assert "does not fit the graph's buffer of 64" in found.error


def test_the_draft_keeps_the_block_size(patched) -> None:
    tree = attention.Tree(patched)
    engine = attention.Engine(tree, 8, 16, "cpu", torch.float32)
    sizes = [tree.sizing.captured(engine.arguments(), 8, is_draft=draft) for draft in (False, True)]
    assert sizes == [17, 8]


def test_without_a_budget_nothing_changes(patched) -> None:
    tree = attention.Tree(patched)
    arguments = stage.Loose(speculative_num_draft_tokens=8)
    assert tree.sizing.captured(arguments, 8) == 8


def test_a_run_over_several_budgets_passes_and_says_what_it_ran(patched) -> None:
    document = prove.document(patched, budgets=(1, 7, 16, 64), count=24)
    assert (document["cases"], document["wrong_rows"], document["passed"]) == (24, 0, True)
    assert document["modes"] == {"eager": 8, "capture": 8, "replay": 8}


def test_the_selftests_combinations_pass_without_a_gpu_too(patched) -> None:
    document = selftest.document(patched, budgets=(16,), batches=(2,), device="cpu", dtypes=("float32",))
    assert (document["passed"], len(document["lines"])) == (True, len(SMALL))


def test_one_source_proves_a_tree_under_a_bare_python(stock, tmp_path) -> None:
    source = script(
        ["--tree", str(stock), "--budgets", "16", "--cases", "6", "--until-wrong", "1", "--compact"]
    )
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run(
        [sys.executable, "-"],
        input=source,
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path,
        env=environment,
        timeout=120,
    )
    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is False
    assert "taken for row" in document["findings"][0]["picture"]


def test_a_directory_without_sglang_is_named_and_exits_2(tmp_path) -> None:
    argv = [sys.executable, "-", "--"]
    source = script(["--tree", str(tmp_path), "--compact"])
    done = subprocess.run(argv, input=source, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert "expected sglang in" in json.loads(done.stdout)["error"]
