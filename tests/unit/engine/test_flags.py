"""A profile becomes the command line of the SGLang at hand, and a hand-written one a profile."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ddtree_ops.engine.flags import TOPK_ENVIRONMENT, engine_argv, engine_environment, profile_from_argv
from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.facts import DdtreeFlags
from ddtree_ops.model.profile import Profile

UNITS = Path(__file__).parents[2] / "cases" / "units"
TREE = frozenset({"--speculative-ddtree-budget", "--speculative-ddtree-topk-cap"})
V0_5_11 = frozenset((UNITS / "server_args_0.5.11.txt").read_text().split())  # every flag of its ServerArgs
V0_5_20 = V0_5_11 - {"--cuda-graph-max-bs"} | {"--cuda-graph-max-bs-decode"}
PLAIN = Profile(name="p", service="s", venv="/v", model="/m", port=30001)
TREED = dataclasses.replace(PLAIN, drafter="/d", budget=16, topk=4)


def test_a_plain_engine_needs_model_and_address_alone() -> None:
    argv = engine_argv(PLAIN, V0_5_11, DdtreeFlags.NONE)
    assert argv == ("--model-path", "/m", "--host", "127.0.0.1", "--port", "30001")


def test_a_drafter_without_a_budget_is_a_dflash_chain() -> None:
    argv = engine_argv(dataclasses.replace(PLAIN, drafter="/d"), V0_5_11, DdtreeFlags.NONE)
    assert argv[6:] == ("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/d")


def test_our_flags_carry_budget_and_topk() -> None:
    argv = engine_argv(TREED, V0_5_11 | TREE, DdtreeFlags.OURS)
    assert argv[6:] == (
        *("--speculative-algorithm", "DFLASH", "--speculative-draft-model-path", "/d"),
        *("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "4"),
    )
    assert engine_environment(TREED, DdtreeFlags.OURS) == ()


def test_algorithm_ddtree_takes_its_cap_from_the_environment() -> None:
    known = V0_5_11 | {"--speculative-ddtree-budget"}
    argv = engine_argv(TREED, known, DdtreeFlags.ALGORITHM)
    assert argv[6:] == (
        *("--speculative-algorithm", "DDTREE", "--speculative-draft-model-path", "/d"),
        *("--speculative-ddtree-budget", "16"),
    )
    stale = dataclasses.replace(TREED, environment=(("A", "b"), (TOPK_ENVIRONMENT, "9")))
    assert engine_environment(stale, DdtreeFlags.ALGORITHM) == (("A", "b"), (TOPK_ENVIRONMENT, "4"))


@pytest.mark.parametrize(
    ("known", "spelling"), [(V0_5_11, "--cuda-graph-max-bs"), (V0_5_20, "--cuda-graph-max-bs-decode")]
)
def test_the_graph_batch_flag_has_the_spelling_that_the_node_knows(
    known: frozenset[str], spelling: str
) -> None:
    argv = engine_argv(dataclasses.replace(PLAIN, graph_max_batch=8), known, DdtreeFlags.NONE)
    assert argv[6:] == (spelling, "8")


def test_without_graphs_no_batch_is_captured() -> None:
    profile = dataclasses.replace(PLAIN, cuda_graph=False, graph_max_batch=8)
    assert engine_argv(profile, V0_5_11, DdtreeFlags.NONE)[6:] == ("--disable-cuda-graph",)


def test_extra_flags_come_last_and_verbatim() -> None:
    profile = dataclasses.replace(PLAIN, tp=8, extra_flags=("--odd", "a b", "--tp-size", "4"))
    assert engine_argv(profile, V0_5_11, DdtreeFlags.NONE)[6:] == (
        *("--tp-size", "8"),
        *("--odd", "a b", "--tp-size", "4"),
    )


@pytest.mark.parametrize(
    ("profile", "known", "ddtree", "message"),
    [
        (TREED, V0_5_11, DdtreeFlags.NONE, "takes no draft-tree budget"),
        (TREED, V0_5_11, DdtreeFlags.OTHER, "takes no draft-tree budget"),
        (TREED, V0_5_11, DdtreeFlags.OURS, "no --speculative-ddtree-budget"),
        (PLAIN, frozenset(), DdtreeFlags.NONE, "no --model-path or --model"),
    ],
)
def test_what_this_sglang_cannot_express_is_refused(
    profile: Profile, known: frozenset[str], ddtree: DdtreeFlags, message: str
) -> None:
    with pytest.raises(Refused, match=message) as caught:
        engine_argv(profile, known, ddtree)
    assert caught.value.hint


@pytest.mark.parametrize(
    ("changes", "what"),
    [
        ({"budget": 0}, "budget"),
        ({"budget": -3}, "budget"),
        ({"topk": 0}, "topk"),
        ({"drafter": None}, "budget"),
    ],
)
def test_a_profile_that_contradicts_itself_is_a_usage_error(changes: dict[str, object], what: str) -> None:
    with pytest.raises(UsageError) as caught:
        engine_argv(dataclasses.replace(TREED, **changes), V0_5_11 | TREE, DdtreeFlags.OURS)  # type: ignore[arg-type]
    assert caught.value.what == what


@pytest.mark.parametrize("case", sorted(UNITS.glob("*.json")), ids=lambda path: path.stem)
def test_a_hand_written_command_line_is_read_or_refused_in_words(case: Path) -> None:
    given_ = json.loads(case.read_text())
    environment = [tuple(pair) for pair in given_["environment"]]
    if "refused" in given_:
        with pytest.raises(Refused) as caught:
            profile_from_argv(given_["argv"], environment, name="n", service="s")
        assert (str(caught.value), bool(caught.value.hint)) == (given_["refused"], True)
        return
    fields = {key: _tuples(value) for key, value in given_["profile"].items()}
    expected = Profile(name="n", service="s", **fields)  # type: ignore[arg-type]
    assert profile_from_argv(given_["argv"], environment, name="n", service="s") == expected


words = st.text("abcxyz0189./-=", min_size=1, max_size=8).filter(lambda word: not word.startswith("-"))
profiles = st.builds(
    Profile,
    name=st.just("n"),
    service=st.just("s"),
    venv=words.map(lambda word: "/" + word.strip("/") + "/v"),
    model=words,
    port=st.integers(1, 65535),
    drafter=words,
    tp=st.integers(1, 16),
    budget=st.none() | st.integers(1, 512),
    topk=st.none() | st.integers(1, 64),
    cuda_graph=st.just(True),
    graph_max_batch=st.none() | st.integers(1, 512),
    extra_flags=st.lists(words.map("--x-{}".format) | words, max_size=6).map(tuple),
)


@given(profiles)
def test_what_is_written_reads_back_as_itself(profile: Profile) -> None:
    if profile.budget is None:
        profile = dataclasses.replace(profile, topk=None)
    argv = engine_argv(profile, V0_5_11 | TREE, DdtreeFlags.OURS)
    command = (f"{profile.venv}/bin/python", "-m", profile.launcher, *argv)
    venv = profile_from_argv(command, name="n", service="s").venv
    assert profile_from_argv(command, name="n", service="s") == dataclasses.replace(profile, venv=venv)


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value
