"""Every SGLang release against every patch set: apply, parse, contract, prove; docs/patch-matrix.md.

    python tools/patch_matrix.py [--check] [--cases 2000] [--releases 0.5.11,0.5.16] [--jobs 2]

Wheels come from the index once and stay in the cache (DDTREE_OPS_CACHE), and so do verdicts, under a digest
of everything that they depend on. The proofs run under DDTREE_OPS_PROOF_PYTHON, a Python with torch and
triton; this one when it is not set.
"""

from __future__ import annotations

import argparse
import ast
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.version import Version

from ddtree_ops.cli.sources import wheel
from ddtree_ops.lab.image import cache_directory
from ddtree_ops.model.patch import PatchedTree
from ddtree_ops.patching.apply import apply_sets
from ddtree_ops.patching.patchset import names_in
from ddtree_ops.patching.recognise import Fit, State, recognise
from ddtree_ops.patching.source import Source, open_source

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "patch-matrix.md"
SETS = ROOT / "patches"
PROVED = "graph-width"  # includes verify-width
FITS = {Fit.FITS: "applies", Fit.NOT_NEEDED: "not needed"}
FIRST = Version("0.5.9")
SMALL_BUDGETS = tuple(range(1, 17))
BUDGETS = (17, 20, 24, 31, 32, 33, 40, 48, 63, 64, 65, 96, 127, 128, *SMALL_BUDGETS * 6)
KERNELS = (
    "sglang/kernels/ops/attention/extend_attention.py",
    "sglang/srt/layers/attention/triton_ops/extend_attention.py",
)
READ = (
    "sglang/kernels/",
    "sglang/srt/configs/",
    "sglang/srt/layers/",
    "sglang/srt/model_executor/",
    "sglang/srt/speculative/",
)
FIGURES = ("fault: wrong", "never written", "cases", "rows", "wrong rows")
EXPLAINED = """\
Each release is proved with `{proved}`, which includes `verify-width`: {cases} verify passes of random trees
with padding, through the release's own Triton backend and kernel, interpreted on a CPU, every row against
float64. Budgets 1 to 128, top-k 1 to 16, batches of 1 to 5, ragged prefixes, MHA, GQA and MLA head shapes; a
third each eager, with capture's metadata, and with replay's. *Fault* is the stock release on the known batch:
two requests at budget 16 and block size 8, 34 rows."""

WORKER = """\
import json, sys
from pathlib import Path
from ddtree_ops.patching.proof import prove

for job in json.loads(sys.argv[1]):
    print(json.dumps(prove.beside(Path(job["folder"]), job["budgets"], job["cases"])), flush=True)
"""


@dataclass(kw_only=True)
class Release:
    """One release's row."""

    version: str
    source: Source
    sources: State
    fits: dict[str, str] = field(default_factory=dict)  # set → applies, not needed, or why not
    tree: PatchedTree | None = None
    stock: dict[str, Any] = field(default_factory=dict)
    patched: dict[str, Any] = field(default_factory=dict)

    @property
    def right(self) -> bool:
        return self.tree is not None and bool(self.patched.get("passed"))


def main() -> int:
    given = _parser().parse_args()
    start = time.monotonic()
    with tempfile.TemporaryDirectory() as scratch:
        releases = [_applied(version) for version in given.releases or versions()]
        _prove(releases, Path(scratch), cases=given.cases, jobs=given.jobs)
    page = _page(releases, given.cases)
    print(f"{len(releases)} releases in {time.monotonic() - start:.0f} s", file=sys.stderr)
    return _checked(page, releases) if given.check else _written(page, releases)


def versions() -> list[str]:
    """Releases on the index from 0.5.9 on, post-releases included, oldest first."""
    argv = [sys.executable, "-m", "pip", "index", "versions", "sglang", "--disable-pip-version-check"]
    done = subprocess.run(argv, capture_output=True, text=True, check=True, timeout=120)
    line = re.search(r"^Available versions: (.*)$", done.stdout, re.MULTILINE)
    found = [Version(text) for text in (line[1].split(", ") if line else [])]
    return [str(version) for version in sorted(found) if version >= FIRST and not version.is_prerelease]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--check", action="store_true", help="compare with the page instead of writing it")
    parser.add_argument(
        "--cases", type=int, default=2000, help="of the patched release; a few of the stock one"
    )
    parser.add_argument("--releases", type=lambda text: text.split(","), help="these alone")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    return parser


def _applied(version: str) -> Release:
    """The release, and what each set makes of it."""
    source = open_source(wheel(version))
    found = recognise(source, SETS)
    release = Release(version=version, source=source, sources=found.state)
    release.fits = {one.name: FITS.get(one.fit, f"no: {one.detail}") for one in found.sets}
    if release.fits[PROVED] in FITS.values():
        release.tree = apply_sets([PROVED], SETS, source.read, version)
    return release


def _prove(releases: Sequence[Release], scratch: Path, *, cases: int, jobs: int) -> None:
    """Runs the proofs that are not kept yet; releases with one kernel share a worker, and its launches."""
    by_version = {release.version: release for release in releases}
    work = []
    for release in releases:
        if release.tree is not None:
            job = _laid_out(release, scratch / release.version, cases)
            if job["kept"].is_file():
                _take(release, json.loads(job["kept"].read_text(encoding="utf-8")))
            else:
                work.append(job)
    with ThreadPoolExecutor(jobs) as pool:
        for _ in pool.map(lambda part: _worker(part, by_version), _shares(releases, work, jobs)):
            pass


def _take(release: Release, found: dict[str, Any]) -> None:
    release.stock, release.patched = found["stock"], found["patched"]


def _laid_out(release: Release, folder: Path, cases: int) -> dict[str, Any]:
    """The files that a proof reads and the patched ones in two directories; what a worker needs to know.

    The verdict is kept under a digest of all that it depends on: these files, the proof, the cases.
    """
    total = hashlib.sha256(f"{cases} {BUDGETS}".encode())
    for file in sorted((ROOT / "ddtree_ops" / "patching" / "proof").glob("*.py")):
        total.update(file.read_bytes())
    for path, data in release.source.contents():
        if path.startswith(READ):
            _write(folder / "stock" / path, data)
            total.update(path.encode() + data)
    for file in release.tree.files if release.tree else ():
        _write(folder / "patched" / file.path, file.after.encode())
        total.update(file.after.encode())
    kept = cache_directory() / "proofs" / f"{total.hexdigest()}.json"
    return {"version": release.version, "folder": str(folder), "cases": cases, "kept": kept}


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _shares(
    releases: Sequence[Release], work: Sequence[dict[str, Any]], jobs: int
) -> list[list[dict[str, Any]]]:
    """The work in `jobs` parts of about one length: a new kernel costs three times a repeated one."""
    kernels: dict[str, list[dict[str, Any]]] = {}
    by_version = {release.version: release for release in releases}
    for one in work:
        kernels.setdefault(_kernel(by_version[one["version"]].source), []).append(one)
    parts: list[list[dict[str, Any]]] = [[] for _ in range(jobs)]
    loads = [0] * jobs
    for group in sorted(kernels.values(), key=len, reverse=True):
        least = loads.index(min(loads))
        parts[least] += group
        loads[least] += 2 + len(group)
    return [part for part in parts if part]


def _kernel(source: Source) -> str:
    """The extend kernel's code without its comments."""
    text = next((found for path in KERNELS if (found := source.read(path))), "")
    nodes = [node for node in ast.parse(text).body if getattr(node, "name", "") == "_fwd_kernel"]
    return "".join(ast.dump(node) for node in nodes)


def _worker(part: Sequence[dict[str, Any]], releases: dict[str, Release]) -> None:
    """One process for some releases; each verdict is kept as it comes."""
    python = os.environ.get("DDTREE_OPS_PROOF_PYTHON", sys.executable)
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
    jobs = [{**job, "kept": "", "budgets": BUDGETS} for job in part]
    with subprocess.Popen(
        [python, "-c", WORKER, json.dumps(jobs)], stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        for job, line in zip(part, process.stdout or (), strict=False):
            _take(releases[job["version"]], json.loads(line))
            _write(job["kept"], line.encode())
            print(job["version"], "proved", file=sys.stderr, flush=True)
    if process.returncode:
        raise SystemExit(f"the proofs' worker ended with {process.returncode}")


def _checked(page: str, releases: Sequence[Release]) -> int:
    """0 when every row of the page is what was found; a release newer than the page is only told of."""
    wrong = [release.version for release in releases if not release.right]
    written = PAGE.read_text(encoding="utf-8")
    for row in page.splitlines():
        if row not in written.splitlines():
            version = row.split("|")[1].strip() if row.startswith("|") else ""
            listed = f"\n| {version} |" in written
            print(f"{'changed' if listed else 'not on the page yet'}: {row}", file=sys.stderr)
            wrong += [version] if listed else []
    return 1 if wrong else 0


def _written(page: str, releases: Sequence[Release]) -> int:
    PAGE.write_text(page, encoding="utf-8")
    return 0 if all(release.right for release in releases) else 1


def _page(releases: Sequence[Release], cases: int) -> str:
    names = names_in(SETS)
    lines = [
        "# Patch sets and SGLang releases",
        "",
        "Generated by `tools/patch_matrix.py` from the releases' own wheels; CI runs it with `--check`.",
        "",
        *EXPLAINED.format(proved=PROVED, cases=f"{cases:,}").splitlines(),
        "",
        f"| SGLang | sources | {' | '.join(names)} | {' | '.join(FIGURES)} |",
        f"| --- | --- | {' | '.join('---' for _ in names)} | {' | '.join('---:' for _ in FIGURES)} |",
        *(_row(release, names) for release in releases),
        "",
        *_notes(releases),
    ]
    return "\n".join(lines)


def _row(release: Release, names: Iterable[str]) -> str:
    fits = (release.fits[name].partition(":")[0] for name in names)
    cells = [release.version, release.sources.value, *fits]
    cells += [_count(release.stock, key) for key in ("wrong_rows", "unwritten_rows")]
    cells += [_count(release.patched, key) for key in ("cases", "rows", "wrong_rows")]
    return f"| {' | '.join(cells)} |"


def _count(document: dict[str, Any], key: str) -> str:
    return f"{document[key]:,}" if key in document else "–"


def _notes(releases: Sequence[Release]) -> list[str]:
    """Why a set is not needed or does not fit, once for each reason."""
    found: dict[str, list[str]] = {}
    for release in releases:
        for name, why in release.tree.not_needed if release.tree else ():
            found.setdefault(f"`{name}` is not needed: {why.partition(' (')[0]}", []).append(release.version)
        for name, fit in release.fits.items():
            if fit.startswith("no:"):
                why = fit[4:].replace(f"got sglang {release.version}, ", "")
                found.setdefault(f"`{name}` does not fit: {why}", []).append(release.version)
    return [f"- {', '.join(versions)}: {note}." for note, versions in found.items()]


if __name__ == "__main__":
    sys.exit(main())
