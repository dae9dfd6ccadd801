"""One proof from the command line: `python -m …proof --tree DIR --budgets 8,16`; JSON on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def main(argv: Sequence[str] | None = None) -> int:
    """Proves one tree; 0: every row right, 1: rows are wrong, 2: the tree could not be run."""
    given = _parser().parse_args(argv)
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    try:
        document = _document(given)
    except (ImportError, LookupError, SyntaxError, AttributeError, TypeError, OSError) as error:
        document = {"passed": False, "error": f"{type(error).__name__}: {error}"}
    print(json.dumps(document, indent=None if given.compact else 2))  # noqa: T201 - the program's output
    return 2 if "error" in document else 0 if document["passed"] else 1


def _document(given: argparse.Namespace) -> dict[str, Any]:
    from . import prove, selftest  # torch and triton read the environment when they are imported

    if given.selftest:
        return selftest.document(
            given.tree,
            budgets=given.budgets,
            batches=given.batches or (1, 4),
            block=given.block,
            device=given.device,
            dtypes=given.dtype,
            seed=given.seed,
            graphs=given.graphs,
        )
    return prove.document(
        given.tree,
        budgets=given.budgets,
        block=given.block,
        count=given.cases,
        seed=given.seed,
        device=given.device,
        dtype=given.dtype[0],
        batches=given.batches,
        until_wrong=given.until_wrong,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="proof", description="Prove tree attention of one SGLang tree.")
    parser.add_argument(
        "--tree",
        type=Path,
        required=True,
        action="append",
        help="directory that holds sglang/; give it again for what the first lacks",
    )
    parser.add_argument("--budgets", type=_numbers, default=(16,), help="tree budgets, such as 7,16,64")
    parser.add_argument("--block", type=int, default=8, help="the drafter's block size")
    parser.add_argument("--batches", type=_numbers, default=(), help="batch sizes; 1 to 5 when left out")
    parser.add_argument("--cases", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--dtype", type=_names, default=("float32",), help="float32, or bfloat16,float16")
    parser.add_argument("--selftest", action="store_true", help="every budget × batch × mode, with times")
    parser.add_argument(
        "--graphs", action=argparse.BooleanOptionalAction, default=True, help="with --selftest"
    )
    parser.add_argument("--until-wrong", type=int, default=0, help="stop after so many cases with wrong rows")
    parser.add_argument("--compact", action="store_true", help="JSON on one line")
    return parser


def _names(text: str) -> tuple[str, ...]:
    names = tuple(text.split(","))
    if unknown := set(names) - {"float32", "float16", "bfloat16"}:
        raise argparse.ArgumentTypeError(
            f"got {', '.join(sorted(unknown))}, expected float32, float16, bfloat16"
        )
    return names


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
