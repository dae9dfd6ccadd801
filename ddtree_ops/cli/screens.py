"""How a run looks: a live view on a terminal, plain lines elsewhere; always on stderr."""

from __future__ import annotations

import re
import sys
import time
from collections.abc import Callable

import typer
from rich.console import Console
from rich.markup import escape
from rich.status import Status

from ddtree_ops.model.plan import Plan
from ddtree_ops.model.release import Gate
from ddtree_ops.run.screen import Screen

MAX_DIFF_LINES = 120
COUNTING_S = 10.0  # between two lines of plain progress that differ in their figures alone
_FIGURES = re.compile(r"\d+")


def make_screen(*, yes: bool, stdin_is_terminal: bool | None = None) -> Screen:
    """The screen for this terminal, or for none."""
    console = Console(stderr=True, highlight=False)
    asks = sys.stdin.isatty() if stdin_is_terminal is None else stdin_is_terminal
    answer = _yes if yes else (_prompt if asks else _nobody)
    return LiveScreen(console, answer) if console.is_terminal else PlainScreen(answer)


class PlainScreen:
    """One line an event, no escapes: for logs and pipes."""

    def __init__(self, answer: Callable[[Plan], bool]) -> None:
        self._answer = answer
        self._told: dict[str, tuple[str, float]] = {}  # by node: progress without figures, and when

    def plan(self, plan: Plan) -> None:
        for line in plan_lines(plan):
            _line(line)

    def ask(self, plan: Plan) -> bool:
        return self._answer(plan)

    def step(self, node: str, name: str, summary: str) -> None:
        _line(f"{node}: {name}: {summary}")

    def progress(self, node: str, text: str) -> None:
        words, now = _FIGURES.sub("", text), time.monotonic()
        told, at = self._told.get(node, ("", 0.0))
        if words != told or now >= at + COUNTING_S:
            self._told[node] = (words, now)
            _line(f"{node}:   {text}")

    def gate(self, node: str, gate: Gate) -> None:
        _line(f"{node}: {gate_line(gate)}")

    def note(self, node: str, text: str) -> None:
        _line(f"{node}: {text}")

    def warn(self, node: str, text: str) -> None:
        _line(f"{node}: warning: {text}")

    def failed(self, node: str, text: str) -> None:
        _line(f"{node}: failed: {text.removeprefix(f'{node}: ')}")

    def close(self) -> None:
        pass


class LiveScreen:
    """Finished steps scroll up with their time; the one that goes on has a spinner and its progress."""

    def __init__(self, console: Console, answer: Callable[[Plan], bool]) -> None:
        self._console, self._answer = console, answer
        self._status: Status | None = None
        self._step, self._summary, self._since = "", "", 0.0

    def plan(self, plan: Plan) -> None:
        self._settle()
        for line in plan_lines(plan):
            self._console.print(_coloured(line))

    def ask(self, plan: Plan) -> bool:
        self._settle()
        return self._answer(plan)

    def step(self, node: str, name: str, summary: str) -> None:
        self._settle()
        self._step, self._summary, self._since = name, summary, time.monotonic()
        self._status = self._console.status(self._busy(node, ""))
        self._status.start()

    def progress(self, node: str, text: str) -> None:
        if self._status is not None:
            self._status.update(self._busy(node, text))

    def gate(self, node: str, gate: Gate) -> None:
        colour = "green" if gate.passed else "bold red"
        self._console.print(f"    [{colour}]{escape(gate_line(gate))}[/]")

    def note(self, node: str, text: str) -> None:
        self._settle()
        self._console.print(f"{escape(node)}: {escape(text)}")

    def warn(self, node: str, text: str) -> None:
        self._console.print(f"[yellow]{escape(node)}: warning: {escape(text)}[/]")

    def failed(self, node: str, text: str) -> None:
        self._settle("[bold red]✗[/]")
        self._console.print(f"[bold red]{escape(text)}[/]")

    def close(self) -> None:
        self._settle()

    def _busy(self, node: str, text: str) -> str:
        return f"[bold]{escape(node)}[/] {self._step}: {escape(text or self._summary)}"

    def _settle(self, mark: str = "[green]✓[/]") -> None:
        """Ends the running step's spinner and leaves one line of it behind."""
        if self._status is None:
            return
        self._status.stop()
        self._status = None
        seconds = time.monotonic() - self._since
        self._console.print(f"{mark} {self._step:<10} {escape(self._summary)} [dim]{seconds:.1f} s[/]")


class PlanKeeper:
    """Another screen, and the plans that were shown on it, by node."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self.plans: dict[str, Plan] = {}
        self.ask, self.step, self.progress = screen.ask, screen.step, screen.progress
        self.gate, self.note, self.warn = screen.gate, screen.note, screen.warn
        self.failed, self.close = screen.failed, screen.close

    def plan(self, plan: Plan) -> None:
        self.plans[plan.node] = plan
        self._screen.plan(plan)


def plan_lines(plan: Plan) -> list[str]:
    """The plan as text: what changes, the diffs, the steps with their undo."""
    if plan.unchanged:
        return [f"{plan.node}: release {plan.current} is what was asked for; nothing to do"]
    lines = [f"{plan.node}: {plan.playbook}: release {plan.current} → {plan.goal.id}"]
    lines += [f"  {change}" for change in plan.changes]
    lines += _diff("unit", plan.unit_diff) + _diff("sources", plan.source_diff)
    lines.append("  steps:")
    for planned in plan.steps:
        undo = f"  [undo: {planned.undo}]" if planned.undo else ""
        lines.append(f"    {planned.step.step:<10} {planned.summary}{undo}")
    return lines


def gate_line(gate: Gate) -> str:
    where = f" {gate.prompt}" if gate.prompt else ""
    return f"{'pass' if gate.passed else 'FAIL'} {gate.name}{where}: {gate.evidence}"


def _diff(what: str, diff: str) -> list[str]:
    if not diff:
        return []
    lines = diff.splitlines()
    shown = [f"    {line}" for line in lines[:MAX_DIFF_LINES]]
    if len(lines) > MAX_DIFF_LINES:
        shown.append(f"    … {len(lines) - MAX_DIFF_LINES} more lines; --json has them all")
    return [f"  {what}:", *shown]


def _coloured(line: str) -> str:
    text = escape(line)
    if line.startswith("    +"):
        return f"[green]{text}[/]"
    if line.startswith("    -"):
        return f"[red]{text}[/]"
    return text


def _line(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _yes(_plan: Plan) -> bool:
    return True


def _prompt(plan: Plan) -> bool:
    return typer.confirm(f"Go on with {plan.node}?", default=False, err=True)


def _nobody(_plan: Plan) -> bool:
    return False
