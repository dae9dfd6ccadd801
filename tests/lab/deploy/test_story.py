"""The story of docs/story.md, played on a real systemd host and on an embedded one."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from ddtree_ops.lab.hosts import Kind, Lab

from ..conftest import KINDS, need
from .conftest import ROOT

spec = importlib.util.spec_from_file_location("story", ROOT / "tools" / "story.py")
assert spec is not None
assert spec.loader is not None
story = importlib.util.module_from_spec(spec)
sys.modules["story"] = story  # where its dataclasses look their module up
spec.loader.exec_module(story)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kind", KINDS)
def test_the_story_goes_as_told(kind: Kind, fleet: Callable[[Kind, int], Lab], tmp_path: Path) -> None:
    need(kind)
    lab = fleet(kind, 1)
    played = list(story.play(lab, lab.status()[0].name, tmp_path))
    for one in played:
        missing = [words for words in one.scene.shows if words not in one.output]
        assert (one.code, missing) == (one.scene.code, []), one.output
    chain, _, tree = (story.accept_length(one.output) for one in played[:3])
    assert tree > chain


def test_the_page_tells_the_scenes_that_are_played() -> None:
    page = (ROOT / "docs" / "story.md").read_text(encoding="utf-8")
    assert [
        scene.words for scene in story.SCENES if f"$ ddtree-ops {' '.join(scene.words)}" not in page
    ] == []
