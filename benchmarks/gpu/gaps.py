"""How near a tie every difference of a matrix run was: in fp32, with plain torch.

Reads a run's directory and recomputes the context of each first difference with the target in fp32. The gap
is that from the target's best logit to the lower of the two tokens' logits; above --fault a difference
counts as a fault.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import torch
from matrix import first_difference, load, reference
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM

LISTED = 60  # places shown, widest gap first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("result", type=Path, help="the directory that matrix.py or soak.py wrote")
    parser.add_argument("--pair", action="append", required=True, help="NAME=DIR")
    parser.add_argument("--fault", type=float, default=0.1)
    parser.add_argument(
        "--text", type=Path, help="what the models were trained on: prompts in it are counted apart"
    )
    args = parser.parse_args()
    run = load(args.result)
    text = args.text.read_text(errors="ignore") if args.text else ""
    faults = 0
    for word in args.pair:
        name, home = word.split("=", 1)
        faults += _pair(name, Path(home), run, args.fault, text)
    print(f"differences with a gap above {args.fault}: {faults}")
    raise SystemExit(1 if faults else 0)


def _pair(name: str, home: Path, run: dict[str, Any], fault: float, text: str) -> int:
    model = AutoModelForCausalLM.from_pretrained(home / "target", dtype=torch.float32).eval()
    model.to("cuda" if torch.cuda.is_available() else "cpu")
    prompts, cells = run["prompts"][name], {k: v for k, v in run["cells"].items() if k.startswith(f"{name}-")}
    key = next(key for key in cells if key.startswith(f"{name}-plain-graph"))
    plain = reference(cells, name, key.removeprefix(f"{name}-plain-graph")) or []
    known = _known(home, prompts, text)
    gaps: dict[tuple[int, int, int], float] = {}
    bad = 0
    print(
        "| cell | batches | equal | of trained text | largest gap | gaps above |\n|---|---|---|---|---|---|"
    )
    for cell, result in cells.items():
        places = [where for figures in result["batches"].values() for where in _places(figures["ids"], plain)]
        for index, at, other in set(places) - gaps.keys():
            context = [*prompts[index], *plain[index][:at]]
            gaps[index, at, other] = _gap(model, context, plain[index][at], other)
        runs = len(result["batches"])
        inside = len(known) * runs - sum(index in known for index, _, _ in places)
        faults = sum(gaps[where] > fault for where in places)
        bad += faults
        largest = max((gaps[where] for where in places), default=0.0)
        equal = f"{len(plain) * runs - len(places)}/{len(plain) * runs} | {inside}/{len(known) * runs}"
        print(f"| {cell} | {','.join(result['batches'])} | {equal} | {largest:.3f} | {faults} |")
    _list(gaps, plain, known)
    return bad


def _known(home: Path, prompts: list[list[int]], text: str) -> set[int]:
    """Prompts that the text holds, their cut first and last characters left out."""
    if not text:
        return set()
    tokenizer = Tokenizer.from_file(str(home / "target" / "tokenizer.json"))
    return {index for index, ids in enumerate(prompts) if tokenizer.decode(ids)[2:-2] in text}


def _list(gaps: dict[tuple[int, int, int], float], plain: list[list[int]], known: set[int]) -> None:
    print("\n| prompt@token | plain, other | fp32 gap | trained text |\n|---|---|---|---|")
    for (index, at, other), gap in sorted(gaps.items(), key=lambda item: -item[1])[:LISTED]:
        print(
            f"| {index}@{at} | {plain[index][at]}, {other} | {gap:.4f} | {'yes' if index in known else ''} |"
        )
    print(f"{len(gaps)} places differ\n")


def _places(ids: list[list[int]], plain: list[list[int]]) -> list[tuple[int, int, int]]:
    """Prompt, token and other id of each sequence's first difference."""
    found = []
    for index, (ours, theirs) in enumerate(zip(ids, plain, strict=True)):
        at = first_difference(ours, theirs)
        if at is not None:
            found.append((index, at, ours[at]))
    return found


def _gap(model: Any, context: list[int], one: int, other: int) -> float:
    with torch.inference_mode():
        logits = model(torch.tensor([context], device=model.device)).logits[0, -1]
    return float(logits.max() - min(logits[one], logits[other]))


if __name__ == "__main__":
    main()
