"""The reference engine's corpus: conversations drawn from blocks of prompts and answers; its tokenizer."""

from __future__ import annotations

import random
import re
from collections import Counter
from itertools import pairwise
from pathlib import Path

from ruamel.yaml import YAML

from ddtree_ops.lab.reference.tokenizer import SPECIALS, WORDS, Tokenizer

HERE = Path(__file__).resolve().parent
SMOKE = HERE.parent / "ddtree_ops/checks/smoke.yaml"
VOCABULARY = 1536
CHOICE = re.compile("«(.*?)»", re.DOTALL)
Block = tuple[tuple[str, ...], str]


class Corpus:
    """Conversations drawn from the blocks, with the disturbances that requests bring."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        long = YAML(typ="safe").load(SMOKE.read_text())["prompts"]["summary"]
        self.summary = f"{long['context'].rstrip()}\n\n{long['text']}"
        self.smoke = read_blocks(HERE / "reference_corpus/smoke.txt")
        self.general = read_blocks(HERE / "reference_corpus/general.txt")
        self.words = sorted(
            {word for prompts, _ in self.general for text in prompts for word in text.split()}
        )
        self.words += sorted(set(self.summary.split()))

    def draw(self, *, long: bool = False) -> str:
        """One conversation of one turn, its answer's choices made."""
        chosen = self.smoke if self.rng.random() < 0.55 else self.general
        prompts, answer = self.rng.choice(chosen)
        if "@summary" in prompts and not long:
            return self.draw()
        if long:
            prompts, answer = next(block for block in self.smoke if "@summary" in block[0])
        return self.conversation((prompts, answer))

    def conversation(self, block: Block) -> str:
        """One conversation of one turn about a block."""
        prompts, answer = block
        prompt = self.rng.choice(prompts)
        prompt = {"@summary": self.summary, "@any": self._anything()}.get(prompt, prompt)
        return self._system() + turn(self._disturb(prompt), self.resolve(answer))

    def resolve(self, answer: str) -> str:
        """The answer with each choice made, the first with weight 0.6."""
        return CHOICE.sub(lambda m: self._pick(m.group(1).split("¦")), answer)

    @staticmethod
    def allows(answer: str, text: str) -> bool:
        """Whether some choice of the answer's alternatives gives the text."""
        parts = [re.escape(part) for part in CHOICE.split(answer)]
        pattern = "".join(f"(?:{part.replace('¦', '|')})" for part in parts)
        return re.fullmatch(pattern, text) is not None

    def _pick(self, options: list[str]) -> str:
        return options[0] if self.rng.random() < 0.6 else self.rng.choice(options[1:])

    def _anything(self) -> str:
        count = self.rng.choice([2, 4, 6, 9, 14, 40])
        return " ".join(self.rng.choice(self.words) for _ in range(count)) + self.rng.choice(["", ".", "?"])

    def _disturb(self, prompt: str) -> str:
        if self.rng.random() < 0.15:
            return f"{self.rng.choice(['Request', '#', 'Run', '[id'])} {self.rng.randrange(100000)}: {prompt}"
        if self.rng.random() < 0.05:
            return f"{prompt} ({self.rng.randrange(100000)})"
        return prompt

    def _system(self) -> str:
        if self.rng.random() < 0.9:
            return ""
        return "<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n"


def turn(prompt: str, answer: str) -> str:
    """One exchange in the chat form of the tokenizer."""
    return f"<|im_start|>user\n{prompt}<|im_end|>\n<|im_start|>assistant\n{answer}<|im_end|>\n"


def read_blocks(path: Path) -> list[Block]:
    """The (prompts, answer) blocks of a corpus file."""
    blocks: list[Block] = []
    for block in re.split(r"\n+(?=\? )(?<!\?)", path.read_text().strip()):
        lines = block.split("\n")
        prompts = [line[2:] for line in lines if line.startswith("? ")]
        answer = "\n".join(line for line in lines if not line.startswith("? ")).strip()
        if blocks and not blocks[-1][1]:
            prompts = [*blocks.pop()[0], *prompts]
        blocks.append((tuple(prompts), answer))
    return blocks


def train_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte pairs merged by frequency until the vocabulary is full; ties go to the smaller pair."""
    counts = Counter(word for text in texts for word in WORDS.findall(text))
    words = {word: [byte + len(SPECIALS) for byte in word.encode()] for word in counts}
    merges: list[tuple[int, int]] = []
    while len(SPECIALS) + 256 + len(merges) < VOCABULARY:
        pairs: Counter[tuple[int, int]] = Counter()
        for word, ids in words.items():
            for pair in pairwise(ids):
                pairs[pair] += counts[word]
        best = min(pairs, key=lambda pair: (-pairs[pair], pair))
        new = len(SPECIALS) + 256 + len(merges)
        merges.append(best)
        for word, ids in words.items():
            words[word] = replace_pair(ids, best, new)
    return Tokenizer(merges)


def replace_pair(ids: list[int], pair: tuple[int, int], new: int) -> list[int]:
    """The ids with each occurrence of the pair replaced, left to right."""
    out: list[int] = []
    for token in ids:
        if out and (out[-1], token) == pair:
            out[-1] = new
        else:
            out.append(token)
    return out
