"""Builds the broken half of the corpus in `tests/cases/garble/` from its clean half and a reference engine.

    python tools/garble_corpus.py corrupt            clean.jsonl → corrupted.jsonl, the same each time
    python tools/garble_corpus.py engine SGLANG      engine.jsonl: what engines with wrong verify widths write

`corrupt` mimics what wrong verify widths do, token by token: unwritten rows (token 0 again and again), rows
that read the mask elsewhere (tokens repeated, out of order, or from the prompt), logits without meaning
(tokens from the whole vocabulary). `engine` starts the reference engine on a copy of SGLANG's
`triton_backend.py` in which the width is a plain number, and asks the smoke prompts. Answers of the right
width are labelled "clean"; the others are "unread" until a person has read them and writes "broken", or
"unnoticeable" where the text alone does not show it, or "sense" where its sense alone does: words that exist,
in places where they may stand, are for re-scoring.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ruamel.yaml import YAML

ROOT = Path(__file__).parents[1]
CASES = ROOT / "tests" / "cases" / "garble"
REFERENCE = ROOT / "ddtree_ops" / "lab" / "reference"
Row = dict[str, str]
Corruption = Callable[[list[str], random.Random, str], list[str]]

_PIECE = re.compile(r" ?[^\W\d_]+|\d| ?[^\w\s]|\s+|_")


def pieces(text: str, rng: random.Random) -> list[str]:
    """The text as a byte-pair tokenizer might cut it: common words whole, longer ones in two to four."""
    cut: list[str] = []
    for word in _PIECE.findall(text):
        while len(word) > 6:
            size = rng.randint(2, 5)
            cut.append(word[:size])
            word = word[size:]
        cut.append(word)
    return cut


def bang(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """Unwritten rows to the end: token 0 for ever."""
    keep = rng.randint(1, max(1, min(12, len(tokens) // 2)))
    return [*tokens[:keep], *"!" * rng.randint(10, 60)]


def zero_rows(tokens: list[str], _rng: random.Random, _prompt: str) -> list[str]:
    """Of each verify pass of 17 rows the last nine were never written."""
    out: list[str] = []
    for at in range(0, len(tokens), 17):
        out += tokens[at : at + 8] + ["!"] * min(9, max(0, len(tokens) - at - 8))
    return out if len(tokens) > 17 else [*tokens, *"!!!!!!!!!"]


def loop(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """From some place on a few tokens over and over."""
    size = rng.randint(2, 7)
    at = rng.randint(0, max(0, len(tokens) - size))
    unit = tokens[at : at + size]
    if sum(c.isalpha() for piece in unit for c in piece) < 4:
        unit = [" and", " the"]
    return tokens[: at + size] + unit * rng.randint(14, 24)


def soup(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """Every few tokens one from anywhere in a large vocabulary."""
    return [rng.choice(_FOREIGN) if rng.random() < 0.35 else piece for piece in tokens]


def bytes_(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """Byte tokens out of order: no UTF-8 any more."""
    return [piece + "\ufffd" * rng.randint(1, 3) if rng.random() < 0.2 else piece for piece in tokens] + [
        " end"
    ]


def turns(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """The template's turns, their markers skipped as special tokens."""
    at = rng.randint(1, max(1, len(tokens) - 2))
    role = rng.choice(["user\n", "assistant\n", "user\nassistant\n"])
    head = "".join(tokens[:at]).rstrip(" \n.,") or "The"
    joined = head if re.search(r"[A-Za-z]$", head) else head + "\nassistant\n"
    return [joined + role if joined == head else joined, *tokens[: rng.randint(2, 20)]]


def markers(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """The template's turns with their markers."""
    at = rng.randint(1, max(1, len(tokens) - 2))
    return [*tokens[:at], "<|im_end|>\n<|im_start|>assistant\n", *tokens[: rng.randint(1, 20)]]


def parrot(_tokens: list[str], rng: random.Random, prompt: str) -> list[str]:
    """Rows that see the prompt alone: a piece of it, and little else."""
    asked = prompt.rstrip(".").split()
    at = rng.randint(0, max(0, len(asked) - 5))
    strange = (
        rng.choice(["The Refer ", "Cert ", "Hereuma ", "Anci "]),
        rng.choice(["owners ", "abuma ", "ence "]),
    )
    return [*strange, " ".join(asked[at : at + rng.randint(4, 6)]), rng.choice(["", ":"])]


def glue(tokens: list[str], rng: random.Random, prompt: str) -> list[str]:
    """Words of the prompt without the spaces between them."""
    asked = [re.sub(r"\W", "", word) for word in prompt.split() if len(word) > 4]
    first, second = rng.sample(asked, 2)
    return [
        first.lower(),
        second.capitalize(),
        rng.choice(["", "", " of", "\n"]),
        *tokens[: rng.randint(0, 6)],
    ]


def shuffle(tokens: list[str], rng: random.Random, _prompt: str) -> list[str]:
    """Tokens of each verify pass accepted in the wrong order."""
    out: list[str] = []
    for at in range(0, len(tokens), 8):
        out += rng.sample(tokens[at : at + 8], len(tokens[at : at + 8]))
    return out


CORRUPTIONS: dict[str, Corruption] = {
    "bang": bang,
    "zero-rows": zero_rows,
    "loop": loop,
    "soup": soup,
    "bytes": bytes_,
    "turns": turns,
    "markers": markers,
    "parrot": parrot,
    "glue": glue,
    "shuffle": shuffle,
}
# What tokens of a large vocabulary look like when drawn at random.
_FOREIGN = (
    *(
        " 的",
        "ément",
        " ру",
        "ство",
        "κα",
        " của",
        "を",
        "ющ",
        " الم",
        "ות",
        " का",
        "ที่",
        "에서",
        "ción",
        "ung",
        "ście",
    ),
    *(
        "是",
        "ров",
        " και",
        "ました",
        " на",
        "بال",
        " της",
        "ใน",
        "들을",
        "在",
        " των",
        "ная",
        "では",
        "ه",
        "ین",
    ),
    *("/**", "());", " uint", "QString", "\\xe", " =>", " xmlns", "PropertyName", " NSString", "(__", "']['"),
)


def corrupted(rows: list[Row]) -> Iterator[Row]:
    """Some corruptions of each clean text that carries enough of a language to be seen broken."""
    prompts = ["Write a short poem about the ocean.", "Write a quicksort function in Python with comments.",
               "Tell a short story about a lighthouse keeper."]  # fmt: skip
    for number, row in enumerate(rows):
        for name in _fitting(row, number):
            rng = random.Random(f"{name} {number}")
            prompt = rng.choice(prompts)
            text = "".join(CORRUPTIONS[name](pieces(row["text"], rng), rng, prompt))
            made = {"label": "broken", "kind": f"{name} of {row['kind']}", "text": text[:600]}
            yield made | ({"prompt": prompt} if name in ("parrot", "glue") else {})


def _fitting(row: Row, number: int) -> list[str]:
    """Which corruptions to apply: one that needs no language, and for English prose a shuffle too."""
    prose = row["kind"].startswith(("prose", "poem")) and len(row["text"]) > 60
    code = row["kind"].startswith("code")
    if not prose and not code:
        return []
    free = ["bang", "zero-rows", "loop", "soup", "bytes", "turns", "markers", "parrot", "glue"]
    chosen = [free[number % len(free)]]
    if row["kind"] == "prose/en" and len(row["text"]) > 200:
        chosen.append("shuffle")
    return chosen


# (budget, verify width of the target); the right one is budget + 1, SGLang 0.5.11 has the block size, 8.
_WIDTHS = ((16, 8), (16, 4), (16, 12), (16, 16), (16, 20), (32, 8), (24, 8), (16, 17), (7, 8))
_TEMPERATURES = (0.0, 0.6, 1.0)
_MORE_OF = (8, 17)  # stock and right: also asked for several answers at once
_TOGETHER = 8
_WIDTH = "self.num_draft_tokens = model_runner.server_args.speculative_num_draft_tokens"


def engine_rows(sglang: Path) -> Iterator[Row]:
    """What engines with these widths answer to the smoke prompts."""
    prompts = YAML(typ="safe").load((ROOT / "ddtree_ops" / "checks" / "smoke.yaml").read_text())["prompts"]
    for budget, width in _WIDTHS:
        label = "clean" if width == budget + 1 else "unread"
        with _engine(sglang, budget, width) as port, ThreadPoolExecutor(_TOGETHER) as pool:
            for (name, prompt), temperature in ((p, t) for p in prompts.items() for t in _TEMPERATURES):
                text = prompt.get("context", "") + "\n" * ("context" in prompt) + prompt["text"]
                kind = f"engine budget {budget} width {width} T {temperature} {name}"
                row = {"label": label, "prompt": prompt["text"]}
                yield row | {"kind": kind, "text": _ask(port, text, temperature)}
                if width in _MORE_OF:
                    asked = [pool.submit(_ask, port, text, temperature) for _ in range(_TOGETHER)]
                    for answer in asked:
                        yield row | {"kind": f"{kind} together", "text": answer.result()}


@contextlib.contextmanager
def _engine(sglang: Path, budget: int, width: int) -> Iterator[int]:
    """A reference engine on a tree whose target backend has this verify width; gives its port."""
    with tempfile.TemporaryDirectory() as base, socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        _stage(sglang, Path(base), width)
        shutil.copytree(REFERENCE, Path(base) / "reference_engine")
        models = Path(base) / "reference_engine" / "models"
        flags = {
            "--model-path": models / "target",
            "--speculative-algorithm": "DFLASH",
            "--speculative-draft-model-path": models / "draft",
            "--speculative-ddtree-budget": budget,
            "--speculative-ddtree-topk-cap": 4,
            "--random-seed": 1,
            "--port": port,
        }
        argv = [
            sys.executable,
            "-m",
            "reference_engine.launch_server",
            *(str(w) for p in flags.items() for w in p),
        ]
        with (Path(base) / "log").open("w") as log:
            child = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": base}, stdout=log, stderr=log)
            try:
                _wait(port, child, Path(base) / "log")
                yield port
            finally:
                child.terminate()
                child.wait(30)


def _stage(sglang: Path, base: Path, width: int) -> None:
    relative = Path("srt/layers/attention/triton_backend.py")
    stock = (sglang / relative).read_text()
    if stock.count(_WIDTH) != 1:
        raise SystemExit(
            f"{sglang / relative}: got {stock.count(_WIDTH)} places that set the width, expected 1"
        )
    wrong = _WIDTH.replace("= ", f"= {width} if not model_runner.is_draft_worker else ")
    (base / "sglang" / relative).parent.mkdir(parents=True)
    (base / "sglang" / "__init__.py").write_text("")
    (base / "sglang" / relative).write_text(stock.replace(_WIDTH, wrong))


def _wait(port: int, child: subprocess.Popen[bytes], log: Path) -> None:
    for _ in range(200):
        if child.poll() is not None:
            raise SystemExit(log.read_text())
        if "fired up" in log.read_text():
            return
        time.sleep(0.1)
    raise SystemExit(f"no engine on port {port}:\n{log.read_text()}")


def _ask(port: int, text: str, temperature: float) -> str:
    turn = f"<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
    body = {"text": turn, "sampling_params": {"temperature": temperature, "max_new_tokens": 96}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/generate", json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=120) as response:
        return str(json.load(response)["text"])


def read(name: str) -> list[Row]:
    return [json.loads(line) for line in (CASES / name).read_text().splitlines()]


def write(name: str, rows: Iterator[Row]) -> None:
    """One row a line; the same text is kept once."""
    kept = {row["text"]: row for row in rows if row["text"].strip()}
    lines = (json.dumps(row, ensure_ascii=False) for row in kept.values())
    (CASES / name).write_text("".join(f"{line}\n" for line in lines))


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("corrupt")
    commands.add_parser("engine").add_argument("sglang", type=Path, help="an unpacked sglang package")
    options = parser.parse_args()
    if options.command == "corrupt":
        write("corrupted.jsonl", corrupted(read("clean.jsonl")))
    else:
        write("engine.jsonl", engine_rows(options.sglang))


if __name__ == "__main__":
    main()
