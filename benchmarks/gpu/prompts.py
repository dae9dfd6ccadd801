"""Prompts as token ids: those shipped with a model pair, or pieces of the running Python's own library."""

from __future__ import annotations

import json
import random
import sysconfig
from pathlib import Path

# The small pairs were trained on the library's modules in alphabetical order up to about here. Past what a
# model was trained on, near ties are common and every verify kernel resolves some of them its own way.
TRAINED = "argparse,ast,bisect,calendar,cmd,codecs,configparser,contextlib,copy,csv,dataclasses"


def shipped(pair: Path) -> list[list[int]]:
    """The prompts in the pair's prompts.json."""
    return list(json.loads((pair / "prompts.json").read_text())["prompts"])


def library(pair: Path, count: int, modules: str = TRAINED, low: int = 16, high: int = 96) -> list[list[int]]:
    """`count` pieces of `low` to `high` tokens from these modules' source, the same in every run."""
    from tokenizers import Tokenizer

    home = Path(sysconfig.get_path("stdlib"))
    text = "\n".join((home / f"{name}.py").read_text(errors="ignore") for name in modules.split(","))
    ids = Tokenizer.from_file(str(pair / "target" / "tokenizer.json")).encode(text).ids
    draw = random.Random(7)
    pieces = []
    for _ in range(count):
        length = draw.randint(low, high)
        at = draw.randrange(0, len(ids) - length)
        pieces.append(ids[at : at + length])
    return pieces
