"""The proof on one NVIDIA GPU, the stock release beside the patched one: verdicts and times.

    python benchmarks/gpu/selftest_h200.py --base TREE --patched TREE --out DIR [--seconds 240]

`TREE` are directories that hold sglang/; the patched one may hold the patched files alone. It needs
torch and triton, and nothing of sglang's requirements. Writes selftest-h200.json and .md to DIR.
Where GPU time comes in short slots, run budgets apart and put the parts together:

    python benchmarks/gpu/selftest_h200.py --join A.json B.json --out DIR
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

BUDGETS = (7, 8, 16, 32, 64, 128)
BATCHES = (1, 2, 4, 8, 16, 32, 48)
STOCK_BATCHES = (2, 16)
DTYPES = ("bfloat16", "float16")
SUMS = ("cases", "rows", "wrong_rows", "unwritten_rows", "refused_cases")


def main() -> int:
    given = _parser().parse_args()
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in given.join] or [_measured(given)]
    document = parts[0] | {name: _joined([part[name] for part in parts]) for name in ("stock", "patched")}
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "selftest-h200.json").write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    (given.out / "selftest-h200.md").write_text(_page(document), encoding="utf-8")
    print(_page(document))
    return 0 if document["patched"]["wrong_rows"] == 0 and not document["patched"]["left_out"] else 1


def _measured(given: argparse.Namespace) -> dict[str, Any]:
    from proof import selftest  # the package alone: ddtree_ops needs more than a GPU machine has

    end = time.monotonic() + given.seconds
    stock = _sweep([given.base], given.budgets, STOCK_BATCHES, ("bfloat16",), end)
    patched = _sweep([given.patched, given.base], given.budgets, BATCHES, DTYPES, end)
    return {"sglang": given.sglang, "stock": stock, "patched": patched, **selftest.machine("cuda")}


def _joined(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Sums and lines of several runs; a budget that one left out and another ran is not left out."""
    total = {key: sum(part[key] for part in parts) for key in SUMS}
    seconds = {key: value for part in parts for key, value in part["seconds"].items()}
    return {
        **total,
        "lines": [line for part in parts for line in part["lines"]],
        "causes": sorted({cause for part in parts for cause in part["causes"]}),
        "seconds": seconds,
        "left_out": [one for part in parts for one in part["left_out"] if one not in seconds],
    }


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--base", type=Path)
    parser.add_argument("--patched", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--join", type=Path, nargs="+", default=[], help="parts that ran apart")
    parser.add_argument("--sglang", default="0.5.11")
    parser.add_argument(
        "--budgets", type=lambda text: tuple(int(part) for part in text.split(",")), default=BUDGETS
    )
    parser.add_argument("--seconds", type=float, default=240, help="no budget is begun after this time")
    return parser


def _sweep(
    trees: Sequence[Path], budgets: Sequence[int], batches: Sequence[int], dtypes: Sequence[str], end: float
) -> dict[str, Any]:
    """The selftest budget by budget; what time did not allow is said, not left out silently."""
    from proof import selftest

    found: dict[str, Any] = {
        "lines": [],
        "causes": [],
        "seconds": {},
        "left_out": [],
        **dict.fromkeys(SUMS, 0),
    }
    for budget in budgets:
        for dtype in dtypes:
            name = f"{budget} {dtype}"
            if time.monotonic() > end:
                found["left_out"].append(name)
                continue
            start = time.monotonic()
            one = selftest.document(trees, budgets=(budget,), batches=batches, dtypes=(dtype,))
            found["seconds"][name] = round(time.monotonic() - start, 2)
            found |= {key: found[key] + one[key] for key in SUMS}
            found["lines"] += one["lines"]
            found["causes"] += [cause["text"] for cause in one["causes"]]
            print(name, one["cases"], "cases", one["wrong_rows"], "wrong", file=sys.stderr, flush=True)
    return found


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
    refused = sorted({text for line in stock["lines"] for text in line["refused"]})
    heads += ["What is wrong with the stock release, by the proof's own words:", ""]
    heads += [f"- {text}" for text in stock["causes"]]
    heads += [f"- refused, {stock['refused_cases']} times, such as: {refused[0]}"] if refused else []
    heads.append("")
    if patched["left_out"]:
        heads += [f"Not run for want of time: budgets {', '.join(patched['left_out'])}.", ""]
    return "\n".join([*heads, *_table("Patched", patched["lines"]), *_table("Stock", stock["lines"])])


def _total(name: str, part: dict[str, Any]) -> str:
    return f"| {name} | {' | '.join(f'{part[key]:,}' for key in SUMS)} |"


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
            *(f"{times[name]:.3f}" if name in times else "refused" for name in ("eager", "replay")),
        )
        rows.append(f"| {' | '.join(cells)} |")
    return [*rows, ""]


if __name__ == "__main__":
    sys.exit(main())
