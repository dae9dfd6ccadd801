"""Garbled texts are found, and no other text is accused, whatever its language, script or notation."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ddtree_ops.checks.garble import garble_verdict
from ddtree_ops.checks.smoke import smoke_plan

ROOT = Path(__file__).parents[3]
CORPUS = sorted((ROOT / "tests" / "cases" / "garble").glob("*.jsonl"))
OCEAN = "Write a short poem about the ocean."


def rows(path: Path) -> list[dict[str, str]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def judged(text: str, prompt: str | None = None) -> bool:
    return garble_verdict(text, prompt).garbled


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_no_clean_text_of_the_corpus_is_accused(path: Path) -> None:
    clean = [row for row in rows(path) if row["label"] == "clean"]
    accused = [(row["kind"], row["text"]) for row in clean if judged(row["text"], row.get("prompt"))]
    assert accused == []


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_no_broken_text_of_the_corpus_is_missed(path: Path) -> None:
    broken = [row for row in rows(path) if row["label"] == "broken"]
    missed = [(row["kind"], row["text"]) for row in broken if not judged(row["text"], row.get("prompt"))]
    assert missed == []


def test_the_corpus_is_as_large_and_as_wide_as_it_says() -> None:
    every = [row for path in CORPUS for row in rows(path)]
    labels = [row["label"] for row in every]
    kinds = {row["kind"] for row in every if row["label"] == "clean"}
    assert (labels.count("clean") >= 300, labels.count("broken") >= 300) == (True, True)
    assert sum(kind.startswith("prose/") for kind in kinds) >= 50
    assert sum(kind.startswith("code/") for kind in kinds) >= 25
    assert set(labels) == {"clean", "broken", "unnoticeable", "sense"}


def test_clean_texts_stay_clean_when_their_prompt_is_known() -> None:
    accused = [row["kind"] for row in rows(CORPUS[0]) if judged(row["text"], OCEAN)]
    assert (CORPUS[0].stem, accused) == ("clean", [])


def test_the_smoke_prompts_themselves_are_no_garble() -> None:
    assert [one.id for one in smoke_plan().requests if judged(one.prompt.text)] == []


def test_corruptions_are_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(ROOT / "tools"))
    import garble_corpus  # type: ignore[import-not-found]

    kept = {row["text"] for row in garble_corpus.corrupted(rows(ROOT / "tests/cases/garble/clean.jsonl"))}
    assert kept == {row["text"] for row in rows(ROOT / "tests/cases/garble/corrupted.jsonl")}
    sys.modules.pop("garble_corpus")


def test_a_verdict_says_what_was_seen_and_where() -> None:
    verdict = garble_verdict("The.r!!!!!!!!!!")
    assert verdict.garbled
    assert verdict.reasons[0] == "'!' 10 times in a row"
    assert verdict.span == (5, 15)


def test_a_clean_verdict_has_nothing_to_say() -> None:
    verdict = garble_verdict("The sea is calm.")
    assert (verdict.garbled, verdict.reasons, verdict.span) == (False, (), None)


@pytest.mark.parametrize("text", ["", " \n\t"])
def test_an_empty_answer_is_no_answer(text: str) -> None:
    assert garble_verdict(text).reasons == ("the answer is empty",)


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("a caf\ufffd", False),  # a character cut off at the very end
        ("a caf\ufffd of\ufffd bytes", True),
        ("the \x00 end", True),
        ("the \ue123 end", True),
        ("wow!!!!!!!", False),
        ("wow!!!!!!!!", True),
        ("!!!!!!!!!!!!", True),
        ("Chapter One ........................ 7", False),
        ("-" * 60 + "\nA rule, and a text.\n" + "-" * 60, False),
        ("Noooooooooooooo!", False),
        ("Nooooooooooooooooooooooooooooooooo!", True),
    ],
)
def test_characters_are_cut_where_people_stop(text: str, garbled: bool) -> None:
    assert judged(text) == garbled


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("It was very, very, very, very cold.", False),
        ("It was " + "very " * 8 + "cold.", True),
        ("La la la la la la la la la, sang the keeper.", False),
        ("I went to the sea and " + "to the sea and " * 6, True),
        ("He said it, " * 3 + "and left.", False),
        ("海が見える。" * 12, True),
        ("def f():\n" + "    f(x, y, z)\n" * 6, False),
        ("The tide comes in and out.\n" * 5, True),
    ],
)
def test_repetition_is_cut_where_songs_stop(text: str, garbled: bool) -> None:
    assert judged(text) == garbled


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("Pythonで書いたコードをGitHubに置きます。", False),
        ("the ocean的 is deep and的 wide and blue", True),
        ("The word спасибо means thanks.", False),
        ("океанность oceanру deepство моря", True),
        ("ocean вода 海 น้ำ समुद्र", True),
        ("Δx and µm and β-carotene", False),
    ],
)
def test_scripts_meet_only_where_writers_let_them(text: str, garbled: bool) -> None:
    assert judged(text) == garbled


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("The ocean wakes before the sun,\nuser\nand every wave", True),
        ("```python\ndefuser\nWrite a Python function that sorts.", True),
        ("Each account belongs to one\nuser\n", False),
        ("Roles:\n\nadmin\nuser\nguest\n", False),
        ("Run it as the superuser\nand log out.", False),
        ("The sea is<|im_end|>\n<|im_start|>assistant\nThe sea", True),
        ('Templates open turns with "<|im_start|>".', False),
    ],
)
def test_turns_of_the_conversation_do_not_belong_into_answers(text: str, garbled: bool) -> None:
    assert judged(text) == garbled


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("Here is a short poem about the ocean:", False),
        ("The Referenceuma abuma poem about the ocean:", True),
        ("poemownersWrite", True),
        ("shortpoem ocean aboutocean", True),
        ("Oceanography is the science of the oceans; a poem about it is a rare thing.", False),
        ("Write a short poem about the ocean. Write a short poem", True),
    ],
)
def test_an_answer_is_more_than_pieces_of_its_prompt(text: str, garbled: bool) -> None:
    assert judged(text, OCEAN) == garbled


@pytest.mark.parametrize(
    ("prompt", "text"),
    [
        ("What is the capital of France?", "The capital of France is Paris."),
        ("What is the capital of France?", "The capital of France is Paris"),
        ("What is the capital of France?", "Paris is the capital of France."),
        ("What is the capital of France?", "Paris is the capital of France"),
        ("Explain how a TCP connection is opened.", "A TCP connection is opened with a handshake."),
        ("What do you call a house with a light for ships?", "That is a lighthouse."),
        ("Write a Python function gcd(a, b).", "def gcd(a, b):\n    return a if b == 0 else gcd(b, a % b)"),
    ],
)
def test_a_short_answer_may_take_up_the_question(prompt: str, text: str) -> None:
    assert not judged(text, prompt)


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("```", True),
        ("``` soon spring; connec rest", True),
        ('```js title="a.js" {1,3}\nlet a = 1;\n```', False),
        ("```{r, echo=FALSE}\nplot(x)\n```", False),
        ("Use ```inline code``` here.", False),
    ],
)
def test_a_fence_opens_with_a_language(text: str, garbled: bool) -> None:
    assert judged(text) == garbled


@pytest.mark.parametrize(
    ("text", "garbled"),
    [
        ("```python\ndef f(x):\n    return [y for y in x if y <", False),  # cut off
        (
            "```python\ndef f(x):\n    left, right = 0\n    while left < right:\n        return x]\n    y = 1\n```",
            True,
        ),
        ("```python\ndef f(items works.", True),
        ("```python\ndef f(x):\n    while x:\n        x = 0\n     x\n```", True),
        ("```python\ndef f(x):\n    return x\n```\n\nIt gives back what it is given.", False),
    ],
)
def test_python_that_was_asked_for_parses_as_far_as_it_goes(text: str, garbled: bool) -> None:
    assert judged(text, "Write a Python function f.") == garbled


def test_english_in_the_wrong_order_is_found() -> None:
    order = (
        "The the lamp of a it burned and, bright the. ships ,home The keeper to of was the by sea and The."
    )
    assert judged(order)


@settings(derandomize=True, deadline=None, max_examples=200)
@given(st.text(max_size=400), st.none() | st.text(max_size=60))
def test_any_text_gets_a_verdict(text: str, prompt: str | None) -> None:
    verdict = garble_verdict(text, prompt)
    assert verdict.garbled == bool(verdict.reasons)


@pytest.mark.parametrize(
    "unit", ["ab", "aB", "海上一盏灯", "QUJD", "x", "user", "a.b", "ab,", "a\n", "`", "( "]
)
def test_long_texts_of_any_make_are_judged_in_time(unit: str) -> None:
    assert garble_verdict(unit * (6000 // len(unit)), OCEAN).garbled
