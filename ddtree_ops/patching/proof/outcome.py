"""Verdicts: rows that are wrong, rows that nobody wrote, and why; no torch here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from .cases import Case
from .picture import Layout, Reading, picture, readings


@dataclass(frozen=True)
class Cause:
    """The first thing in the metadata that is not what the pass needs."""

    kind: str  # "width", "stride", "offset", "graph", "value"
    got: int
    expected: int
    text: str


@dataclass(frozen=True)
class RowFinding:
    request: int
    row: int
    kind: str  # "unwritten" or "wrong"
    error: float | None  # relative, against float64; None where nothing was written
    why: str


@dataclass(frozen=True)
class Verdict:
    """One case; `wrong` counts unwritten rows too."""

    case: Case
    rows: int
    wrong: int
    unwritten: int
    worst: float  # largest relative error of a written row
    cause: Cause | None = None
    findings: tuple[RowFinding, ...] = ()
    picture: str = ""
    error: str = ""  # the code refused: an exception, with its numbers


@dataclass
class Tally:
    """Sums over cases, and the first findings in full."""

    cases: int = 0
    rows: int = 0
    wrong: int = 0
    unwritten: int = 0
    refused: int = 0
    worst: float = 0.0
    causes: Counter[str] = field(default_factory=Counter)
    shown: list[Verdict] = field(default_factory=list)
    modes: Counter[str] = field(default_factory=Counter)

    def add(self, verdict: Verdict, *, show: int = 3) -> None:
        self.cases += 1
        self.rows += verdict.rows
        self.wrong += verdict.wrong
        self.unwritten += verdict.unwritten
        self.refused += bool(verdict.error)
        self.worst = max(self.worst, verdict.worst)
        self.modes[verdict.case.mode] += 1
        if verdict.cause:
            self.causes[verdict.cause.text] += 1
        if (verdict.wrong or verdict.error) and len(self.shown) < show:
            self.shown.append(verdict)

    @property
    def passed(self) -> bool:
        return self.cases > 0 and self.wrong == 0 and self.refused == 0

    def document(self) -> dict[str, Any]:
        """The JSON of `patch prove`."""
        return {
            "cases": self.cases,
            "rows": self.rows,
            "wrong_rows": self.wrong,
            "unwritten_rows": self.unwritten,
            "refused_cases": self.refused,
            "passed": self.passed,
            "worst_error": self.worst,
            "modes": dict(self.modes),
            "causes": [{"text": text, "cases": count} for text, count in self.causes.most_common(8)],
            "findings": [_shown(verdict) for verdict in self.shown],
        }


def cause(case: Case, layout: Layout, held: int) -> Cause | None:
    """What in the metadata explains wrong rows, the root of it first; `held` rows were computed at all."""
    step = layout.rows_at[1] - layout.rows_at[0]
    if held < case.rows:
        per = held // (case.batch + case.padded)
        return Cause(
            "graph", per, case.width, f"graph: captured for {per} tokens a request, expected {case.width}"
        )
    if step != case.width:
        return Cause("width", step, case.width, f"width: {step} rows a request, expected {case.width}")
    if layout.longest < case.width:
        text = f"width: {layout.longest} rows a request are computed, expected {case.width}"
        return Cause("width", layout.longest, case.width, text)
    expected = 0
    for request, prefix in enumerate(case.prefixes):
        got = layout.mask_at[request]
        if got != expected:
            text = f"offset: mask of request {request} read at {got}, expected {expected}"
            return Cause("offset", got, expected, text)
        expected += case.width * (prefix + case.width)
    return None


def judged(
    case: Case, layout: Layout, held: int, errors: Sequence[float | None], tolerance: float
) -> Verdict:
    """The verdict from each row's relative error; None stands for a row that nobody wrote."""
    bad = [number for number, error in enumerate(errors) if error is None or not error <= tolerance]
    written = [error for error in errors if error is not None]
    root = cause(case, layout, held) if bad else None
    read = readings(case, layout) if bad else []
    return Verdict(
        case=case,
        rows=case.rows,
        wrong=len(bad),
        unwritten=sum(error is None for error in errors),
        worst=max((error for error in written if error == error), default=0.0),
        cause=root
        or (Cause("value", 0, 0, "value: metadata is right, the kernel's result is not") if bad else None),
        findings=tuple(_finding(case, layout, read[number], errors[number]) for number in bad),
        picture=picture(case, layout) if bad else "",
    )


def _finding(case: Case, layout: Layout, reading: Reading, error: float | None) -> RowFinding:
    step = layout.rows_at[1] - layout.rows_at[0]
    if reading.as_request is None:
        why = f"width: rows {step} and up of a request belong to nobody"
    elif (reading.as_request, reading.as_row) != (reading.request, reading.row):
        why = f"width: taken for row {reading.as_row} of request {reading.as_request}"
    elif step != case.width:
        prefix = case.prefixes[reading.request]
        why = f"stride: mask rows of {prefix + step} instead of {prefix + case.width}"
    else:
        why = "offset: mask read elsewhere" if cause(case, layout, case.rows) else "value"
    kind = "unwritten" if error is None else "wrong"
    return RowFinding(reading.request, reading.row, kind, error, why)


def _shown(verdict: Verdict) -> dict[str, Any]:
    return {
        "case": str(verdict.case),
        "rows": verdict.rows,
        "wrong_rows": verdict.wrong,
        "unwritten_rows": verdict.unwritten,
        "cause": asdict(verdict.cause) if verdict.cause else None,
        "error": verdict.error,
        "row_findings": [asdict(finding) for finding in verdict.findings[:64]],
        "picture": verdict.picture,
    }
