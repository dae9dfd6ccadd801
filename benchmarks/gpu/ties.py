"""How near a tie the differences of features.py were: the greedy path in fp32, each case's adjustments made.

For each prompt that some server answered differently, the gap between the target's two best tokens is shown
where the difference began, and the smallest gap up to there: one that fp32 leaves earlier, it leaves there.
"""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from features import CASES
from prompts import shipped
from transformers import AutoModelForCausalLM

Adjust = Callable[[torch.Tensor, list[int]], None]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pair", type=Path, required=True, help="directory with target/ and prompts.json")
    parser.add_argument("--features", type=Path, required=True, help="what features.py wrote to --out")
    args = parser.parse_args()
    model = AutoModelForCausalLM.from_pretrained(args.pair / "target", dtype=torch.float32).eval()
    prompts = shipped(args.pair)
    long = [[token for one in prompts[at:] + prompts[:at] for token in one][:700] for at in range(16)]
    cases = {"repetition": (prompts, scaled), "min_new_tokens": (prompts, held), "long prompt": (long, as_is)}
    print("| case | prompt | tokens where servers differ | gap there | smallest gap up to there |")
    print("|---|---|---|---|---|")
    for name, (inputs, adjust) in cases.items():
        for index, places in sorted(differing(json.loads(args.features.read_text()), name).items()):
            gaps = path(model, inputs[index], max(places) + 1, adjust)
            there = ", ".join(f"{gaps[at]:.3f}" for at in places)
            least = ", ".join(f"{min(gaps[: at + 1]):.3f}" for at in places)
            print(f"| {name} | {index} | {', '.join(map(str, places))} | {there} | {least} |", flush=True)


def differing(results: dict[str, Any], case: str) -> dict[int, list[int]]:
    """Tokens at which any server's answer left the plain one, by prompt."""
    found: dict[int, set[int]] = {}
    for lines in results.values():
        for index, at in re.findall(r"\b(\d+)@(\d+)", lines.get(case, "")):
            found.setdefault(int(index), set()).add(int(at))
    return {index: sorted(places) for index, places in found.items()}


def path(model: Any, prompt: list[int], count: int, adjust: Adjust) -> list[float]:
    """Gaps between the two best tokens along the greedy path."""
    output: list[int] = []
    gaps: list[float] = []
    ids, cache = torch.tensor([prompt]), None
    with torch.inference_mode():
        while len(output) < count:
            made = model(ids, past_key_values=cache, use_cache=True)
            logits, cache = made.logits[0, -1].clone(), made.past_key_values
            adjust(logits, output)
            best, token = logits.topk(2)
            gaps.append(float(best[0] - best[1]))
            output.append(int(token[0]))
            ids = token[:1].view(1, 1)
    return gaps


def as_is(logits: torch.Tensor, output: list[int]) -> None:
    """Nothing to adjust."""


def scaled(logits: torch.Tensor, output: list[int]) -> None:
    penalty = CASES["repetition"]["repetition_penalty"]
    for token in set(output):
        logits[token] = logits[token] * penalty if logits[token] < 0 else logits[token] / penalty


def held(logits: torch.Tensor, output: list[int]) -> None:
    case = CASES["min_new_tokens"]
    if len(output) < case["min_new_tokens"]:
        logits[[0, *case["stop_token_ids"]]] = float("-inf")


if __name__ == "__main__":
    main()
