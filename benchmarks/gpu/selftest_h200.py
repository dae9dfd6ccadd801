"""The proof on one NVIDIA GPU, the stock release beside the patched one: verdicts and times.

    python benchmarks/gpu/selftest_h200.py --base TREE --patched TREE --out DIR [--seconds 240]

`TREE` are directories that hold sglang/; the patched one may hold the patched files alone. It needs
torch and triton, and nothing of sglang's requirements. Writes selftest-h200.json and .md to DIR.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2] / "ddtree_ops" / "patching"))

from proof import selftest  # the package alone: ddtree_ops needs more than a GPU machine has

BUDGETS = (7, 8, 16, 32, 64, 128)
BATCHES = (1, 2, 4, 8, 16, 32, 48)
STOCK_BATCHES = (2, 16)
DTYPES = ("bfloat16", "float16")


def main() -> int:
    given = _parser().parse_args()
    end = time.monotonic() + given.seconds
    stock = _sweep([given.base], STOCK_BATCHES, ("bfloat16",), end)
    patched = _sweep([given.patched, given.base], BATCHES, DTYPES, end)
    document = {"sglang": given.sglang, "stock": stock, "patched": patched, **selftest.machine("cuda")}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "selftest-h200.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (given.out / "selftest-h200.md").write_text(_page(document), encoding="utf-8")
    print(_page(document))
    return 0 if patched["wrong_rows"] == 0 and patched["complete"] else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path, required=True)
    parser.add_argument("--patched", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--sglang", default="0.5.11")
    parser.add_argument("--seconds", type=float, default=240, help="no budget is begun after this time")
    return parser


def _sweep(
    trees: Sequence[Path], batches: Sequence[int], dtypes: Sequence[str], end: float
) -> dict[str, Any]:
    """The selftest budget by budget; what time did not allow is said, not left out silently."""
    total: dict[str, Any] = {"cases": 0, "rows": 0, "wrong_rows": 0, "unwritten_rows": 0, "refused_cases": 0}
    found: dict[str, Any] = {"lines": [], "causes": [], "seconds": {}, "left_out": []}
    for budget in BUDGETS:
        for dtype in dtypes:
            if time.monotonic() > end:
                found["left_out"].append(f"budget {budget} {dtype}")
                continue
            start = time.monotonic()
            one = selftest.document(trees, budgets=(budget,), batches=batches, dtypes=(dtype,))
            found["seconds"][f"{budget} {dtype}"] = round(time.monotonic() - start, 2)
            total = {key: value + one[key] for key, value in total.items()}
            found["lines"] += one["lines"]
            found["causes"] += [cause["text"] for cause in one["causes"]]
            print(
                budget, dtype, one["cases"], "cases", one["wrong_rows"], "wrong", file=sys.stderr, flush=True
            )
    return {**total, **found, "causes": sorted(set(found["causes"])), "complete": not found["left_out"]}


def _page(document: dict[str, Any]) -> str:
    stock, patched = document["stock"], document["patched"]
    heads = [
        f"# Tree attention of SGLang {document['sglang']} on {document['device']}",
        "",
        f"torch {document['torch']}, triton {document['triton']}, {document['capability']}.",
        "The release's own Triton backend and kernel against float64: eager, with capture's metadata, and",
        "CUDA graphs replayed with changing trees, prefixes, inputs. By `benchmarks/gpu/selftest_h200.py`.",
        "",
        "| | cases | rows | wrong rows | never written | refused |",
        "| --- | ---: | ---: | ---: | ---: | ---: |",
        *(_total(name, part) for name, part in (("stock", stock), ("patched", patched))),
        "",
    ]
    if patched["left_out"]:
        heads += [f"Not run for want of time: {', '.join(patched['left_out'])}.", ""]
    return "\n".join([*heads, *_table("Patched", patched["lines"]), *_table("Stock", stock["lines"])])


def _total(name: str, part: dict[str, Any]) -> str:
    cells = (part[key] for key in ("cases", "rows", "wrong_rows", "unwritten_rows", "refused_cases"))
    return f"| {name} | {' | '.join(f'{cell:,}' for cell in cells)} |"


def _table(name: str, lines: Sequence[dict[str, Any]]) -> list[str]:
    """One row a budget, batch and head shape; types side by side in the verdict, times of the first."""
    head = "| budget | batch | heads | rows | wrong | worst error | eager ms | replay ms |"
    rows = [
        f"## {name}",
        "",
        "One layer; eager includes its metadata, a replay is the graph alone.",
        "",
        head,
    ]
    rows.append("| ---: | ---: | --- | ---: | ---: | ---: | ---: | ---: |")
    for line in lines:
        times = line["milliseconds"]
        cells = (
            f"{line['budget']}",
            f"{line['batch']}",
            f"{line['heads']} {line['dtype']}",
            f"{line['rows']:,}",
            f"{line['wrong_rows']:,}",
            f"{line['worst_error']:.1e}",
            f"{times.get('eager', float('nan')):.3f}",
            f"{times.get('replay', float('nan')):.3f}",
        )
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, ""]


if __name__ == "__main__":
    sys.exit(main())
