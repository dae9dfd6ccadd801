"""One proof from the command line: `python -m …proof --tree DIR --budgets 8,16`; JSON on stdout."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path


def main(argv: Sequence[str] | None = None) -> int:
    """Proves one tree; 0: every row right, 1: rows are wrong, 2: the tree could not be run."""
    given = _parser().parse_args(argv)
    if given.device == "cpu":
        os.environ["TRITON_INTERPRET"] = "1"
    from . import prove  # torch and triton read the environment when they are imported

    document = prove.document(
        given.tree,
        budgets=given.budgets,
        block=given.block,
        count=given.cases,
        seed=given.seed,
        device=given.device,
        dtype=given.dtype,
        batches=given.batches,
        until_wrong=given.until_wrong,
    )
    print(json.dumps(document, indent=None if given.compact else 2))  # noqa: T201 - the program's output
    return 0 if document["passed"] else 1


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
    parser.add_argument("--dtype", choices=("float32", "float16", "bfloat16"), default="float32")
    parser.add_argument("--until-wrong", type=int, default=0, help="stop after so many cases with wrong rows")
    parser.add_argument("--compact", action="store_true", help="JSON on one line")
    return parser


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in text.split(","))


if __name__ == "__main__":
    sys.exit(main())
