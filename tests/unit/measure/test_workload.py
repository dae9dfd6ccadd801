"""Workloads: the shipped ones, operators' files, and what is wrong with the others."""

from __future__ import annotations

import itertools
import json

import pytest

from ddtree_ops.measure.workload import SHIPPED, prompts, workload
from ddtree_ops.model.errors import UsageError


@pytest.mark.parametrize("name", SHIPPED)
def test_a_shipped_workload_has_different_tasks(name):
    """Each has at least eight tasks, all different."""
    texts = [task.text for task in workload(name).tasks]
    assert len(texts) == len(set(texts)) >= 8


def test_a_mark_makes_every_prompt_unique_from_its_start():
    """No two prompts share more than the mark's own beginning."""
    drawn = [prompt.text for prompt in itertools.islice(prompts(workload("poem"), mark="x"), 40)]
    assert len({text[:16] for text in drawn}) == 40


def test_a_shared_prefix_stays_shared():
    """The mark comes after the text that is shared on purpose."""
    first, second = itertools.islice(prompts(workload("shared-prefix"), mark="x"), 2)
    assert first.text[:2000] == second.text[:2000]
    assert first.text != second.text


def test_long_context_is_long():
    """Every prompt has at least 3,000 words."""
    assert min(len(task.text.split()) for task in workload("long-context").tasks) > 3000


def test_prompts_start_where_they_are_told():
    """A cell may go on where another ended."""
    assert next(prompts(workload("chat"), start=3)).id == "chat/3"


FORMS = {
    "prompt": {"prompt": "hi"},
    "text": {"text": "hi"},
    "string": "hi",
    "messages": {"messages": [{"role": "system", "content": "be"}, {"role": "user", "content": "hi"}]},
    "ShareGPT": {"conversations": [{"from": "human", "value": "hi"}, {"from": "gpt", "value": "ho"}]},
}


@pytest.mark.parametrize("form", FORMS)
def test_operators_files_come_as_jsonl_or_as_an_array(tmp_path, form):
    """Each form that people keep prompts in is read from both kinds of file."""
    lines, array = tmp_path / "w.jsonl", tmp_path / "w.json"
    lines.write_text(json.dumps(FORMS[form]) + "\n\n")
    array.write_text(json.dumps([FORMS[form]]))
    assert [workload(str(path)).tasks[0].text for path in (lines, array)] == ["hi", "hi"]


BAD = {
    "empty": ("", "got no prompt, expected at least one JSON line with a prompt"),
    "not JSON": ("hello\n", "expected one JSON object a line"),
    "no prompt": ('{"prompt": ""}\n', "w:1: got an entry without a prompt"),
    "only the assistant speaks": (
        '{"messages": [{"role": "assistant", "content": "x"}]}',
        "without a prompt",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_file_is_told_with_its_place(tmp_path, case):
    """The message has the file, the line and what was expected."""
    text, message = BAD[case]
    path = tmp_path / "w"
    path.write_text(text)
    with pytest.raises(UsageError) as caught:
        workload(str(path))
    assert message in str(caught.value)


def test_bytes_that_are_no_text_are_refused(tmp_path):
    """A binary file is a usage error."""
    (tmp_path / "w").write_bytes(b"\xff\xfe\x00\x81")
    with pytest.raises(UsageError, match="not UTF-8"):
        workload(str(tmp_path / "w"))


def test_an_unknown_name_lists_the_known_ones():
    """A typing error is answered with the choice."""
    with pytest.raises(UsageError, match="expected a file or one of code, poem"):
        workload("cod")


def test_a_huge_file_is_cut_at_a_hundred_thousand_prompts(tmp_path):
    """Lines beyond the most that a run can use are not read."""
    path = tmp_path / "w.jsonl"
    path.write_text('{"prompt": "a"}\n' * 100_001 + "broken\n")
    assert len(workload(str(path)).tasks) == 100_000
