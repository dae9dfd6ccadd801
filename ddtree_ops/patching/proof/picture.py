"""Which columns a row reads, worked out from the metadata and drawn for a terminal; no torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from .cases import Case, ancestors

RIGHT, WRONG, MISSED, NOTHING = "#", "!", "o", "."


@dataclass(frozen=True)
class Layout:
    """Where a kernel finds rows and mask bits; what `Seen` holds, as plain integers."""

    rows_at: Sequence[int]
    mask_at: Sequence[int]
    longest: int
    mask: Sequence[int]


@dataclass(frozen=True)
class Reading:
    """What the kernel does for one row of the batch; `tree` are columns of its request's own tokens."""

    request: int  # whose row it is
    row: int  # its place in the request
    as_request: int | None  # whose row the kernel takes it for; None: nobody's, it is not computed
    as_row: int = 0
    tree: tuple[int, ...] = ()


def readings(case: Case, layout: Layout) -> list[Reading]:
    """For every row of the batch, what the kernel reads: its own index arithmetic on plain integers.

    The kernel numbers rows from rows_at, and finds a mask row at
    mask_at[request] + row × (prefix + rows of the request) + prefix.
    """
    found = []
    for number in range(case.rows):
        request, row = divmod(number, case.width)
        holder = _holder(layout, number)
        if holder is None or number - layout.rows_at[holder] >= layout.longest or holder >= case.batch:
            found.append(Reading(request, row, None))
            continue
        as_row = number - layout.rows_at[holder]
        held = layout.rows_at[holder + 1] - layout.rows_at[holder]
        prefix = case.prefixes[holder]
        start = layout.mask_at[holder] + as_row * (prefix + held) + prefix
        bits = layout.mask[start : start + held]
        tree = tuple(column for column in range(len(bits)) if bits[column])
        found.append(Reading(request, row, holder, as_row, tree))
    return found


def picture(case: Case, layout: Layout, *, rows: int = 40, columns: int = 100) -> str:
    """Rows down, tree columns across: # read rightly, ! read wrongly, o missed; prefixes as their length."""
    lines = [f"{case}; rows of {case.width}, mask rows of prefix + {case.width}"]
    found = readings(case, layout)
    for reading in found[:rows]:
        seen = ancestors(case.trees[reading.request])[reading.row]
        label = f"r{reading.request} row {reading.row:3}"
        if reading.as_request is None:
            lines.append(f"{label}  not computed")
            continue
        lines.append(f"{label}  {_strip(case, reading, seen)[:columns]}{_whose(case, reading)}")
    if len(found) > rows:
        lines.append(f"… {len(found) - rows} more rows")
    lines.append(f"{RIGHT} read, as it should   {WRONG} read, not its own   {MISSED} should be read, is not")
    return "\n".join(lines)


def _holder(layout: Layout, number: int) -> int | None:
    starts = layout.rows_at
    return next((one for one in range(len(starts) - 1) if starts[one] <= number < starts[one + 1]), None)


def _strip(case: Case, reading: Reading, seen: Sequence[int]) -> str:
    """One character a column; a row taken for another request's reads that one's tokens, all wrong."""
    own = reading.as_request == reading.request and reading.as_row == reading.row
    marks = []
    for column in range(case.width):
        read, wanted = column in reading.tree, column in seen
        if read:
            marks.append(RIGHT if wanted and own else WRONG)
        else:
            marks.append(MISSED if wanted else NOTHING)
    return "".join(marks)


def _whose(case: Case, reading: Reading) -> str:
    if (reading.as_request, reading.as_row) == (reading.request, reading.row):
        return ""
    prefix = case.prefixes[reading.as_request or 0]
    return f"  taken for row {reading.as_row} of request {reading.as_request} (its prefix of {prefix})"
