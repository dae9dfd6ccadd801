"""Byte-level BPE with chat turns, kept as tokenizer.json: its merges and nothing else."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from itertools import pairwise
from pathlib import Path

SPECIALS = ("<|im_start|>", "<|im_end|>", "<|endoftext|>", "<|mask|>")
END, MASK = SPECIALS.index("<|im_end|>"), SPECIALS.index("<|mask|>")
WORDS = re.compile(r"\n[ \n]*| ?[^\W\d_]+|\d| ?[^\w\s]+|_|\s")
_SPECIAL = re.compile("(" + "|".join(re.escape(text) for text in SPECIALS) + ")")


class Tokenizer:
    """Ids: the special tokens, then the 256 bytes, then one id a merge, in the order of the merges."""

    def __init__(self, merges: Sequence[tuple[int, int]]) -> None:
        self.pieces = [text.encode() for text in SPECIALS] + [bytes([byte]) for byte in range(256)]
        self.ranks: dict[tuple[int, int], int] = {}
        for pair in merges:
            self.ranks[pair] = len(self.pieces)
            self.pieces.append(self.pieces[pair[0]] + self.pieces[pair[1]])
        self._words: dict[str, list[int]] = {}

    @classmethod
    def load(cls, directory: Path) -> Tokenizer:
        """The tokenizer of a model directory."""
        merges = json.loads((directory / "tokenizer.json").read_text())["merges"]
        return cls([(left, right) for left, right in merges])

    def save(self, directory: Path) -> None:
        """Writes tokenizer.json into a model directory."""
        (directory / "tokenizer.json").write_text(json.dumps({"merges": [list(pair) for pair in self.ranks]}))

    @property
    def size(self) -> int:
        """How many ids there are."""
        return len(self.pieces)

    def encode(self, text: str) -> list[int]:
        """Token ids of a text; the names of special tokens become their ids."""
        ids: list[int] = []
        for part in _SPECIAL.split(text):
            if part in SPECIALS:
                ids.append(SPECIALS.index(part))
            else:
                for word in WORDS.findall(part):
                    ids += self._word(word)
        return ids

    def decode(self, ids: Iterable[int], *, skip_special: bool = True) -> str:
        """Text of token ids; bytes that are no UTF-8 become U+FFFD."""
        kept = (i for i in ids if not skip_special or i >= len(SPECIALS))
        return b"".join(self.pieces[i] for i in kept).decode("utf-8", errors="replace")

    def chat(self, messages: Sequence[tuple[str, str]]) -> str:
        """A conversation of (role, text) as the model learnt it, up to where the assistant answers."""
        turns = [f"<|im_start|>{role}\n{text}<|im_end|>\n" for role, text in messages]
        return "".join(turns) + "<|im_start|>assistant\n"

    def _word(self, word: str) -> list[int]:
        if word not in self._words:
            if len(self._words) > 50_000:
                self._words.clear()
            self._words[word] = self.merge([byte + len(SPECIALS) for byte in word.encode()])
        return self._words[word]

    def merge(self, ids: list[int]) -> list[int]:
        """Applies the merges to one word, lowest rank first."""
        none = len(self.pieces)
        while len(ids) > 1:
            ranked = [self.ranks.get(pair, none) for pair in pairwise(ids)]
            best = min(ranked)
            if best == none:
                break
            at = ranked.index(best)
            ids = [*ids[:at], best, *ids[at + 2 :]]
        return ids
