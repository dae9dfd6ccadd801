"""Plain progress: what counts up is told now and then, what says something new at once."""

from __future__ import annotations

import time

import pytest

from ddtree_ops.cli.screens import PlainScreen


def test_progress_that_only_counts_is_told_every_ten_seconds(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    screen = PlainScreen(lambda plan: True)
    for second in range(25):
        monkeypatch.setattr(time, "monotonic", lambda now=100.0 + second: now)
        screen.progress("a", f"start, {second} s")
    screen.progress("b", "start, 0 s")
    screen.progress("a", "graphs, 0 s")
    told = capsys.readouterr().err.splitlines()
    assert told == [
        *(f"a:   start, {second} s" for second in (0, 10, 20)),
        "b:   start, 0 s",
        "a:   graphs, 0 s",
    ]
