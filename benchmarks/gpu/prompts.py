"""Prompts as token ids: those shipped with a model pair, or pieces of the running Python's own library."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path


def shipped(pair: Path) -> list[list[int]]:
    """The prompts in the pair's prompts.json."""
    return list(json.loads((pair / "prompts.json").read_text())["prompts"])


def library(pair: Path, count: int, seed: int = 7, low: int = 16, high: int = 96) -> list[list[int]]:
    """`count` pieces of `low` to `high` tokens from the standard library's source, the same for the same seed."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(pair / "target" / "tokenizer.json"))
    names = [
        "argparse",
        "ast",
        "configparser",
        "csv",
        "datetime",
        "difflib",
        "inspect",
        "optparse",
        "pprint",
        "typing",
    ]
    home = Path(sysconfig.get_path("stdlib"))
    text = "\n".join(
        (home / f"{name}.py").read_text(errors="ignore") for name in names if (home / f"{name}.py").exists()
    )
    ids = tokenizer.encode(text).ids
    draw = random.Random(seed)
    pieces = []
    for _ in range(count):
        length = draw.randint(low, high)
        at = draw.randrange(0, len(ids) - length)
        pieces.append(ids[at : at + length])
    return pieces
