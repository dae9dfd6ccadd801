"""What an arm or a trial changes of a profile, and that it changes nothing else."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ddtree_ops.measure.isolate import Setup
from ddtree_ops.measure.sweep import Arm, ArmKind
from ddtree_ops.model.profile import Profile
from ddtree_ops.run.vary import arm_profile, needed_flags, setup_of, setup_profile

BASE = Profile(
    name="k26",
    service="sglang",
    venv="/opt/venv",
    model="/models/k26",
    drafter="/models/draft",
    port=30001,
    budget=16,
    topk=4,
    extra_flags=("--speculative-dflash-block-size", "4", "--trust-remote-code"),
)
SETS = ("verify-width", "graph-width")
FAILING = setup_of(BASE, SETS)


def test_a_tree_arm_changes_budget_topk_and_graphs_alone() -> None:
    arm = Arm(kind=ArmKind.TREE, budget=32, topk=None, graphs=False)
    assert arm_profile(BASE, arm) == replace(BASE, budget=32, topk=None, cuda_graph=False)


def test_the_chain_arm_keeps_the_drafter_and_its_flags() -> None:
    assert arm_profile(BASE, Arm(kind=ArmKind.CHAIN)) == replace(BASE, budget=None, topk=None)


def test_the_autoregressive_arm_has_no_flag_of_speculation_left() -> None:
    bare = arm_profile(BASE, Arm(kind=ArmKind.AUTOREGRESSIVE))
    assert (bare.drafter, bare.budget, bare.extra_flags) == (None, None, ("--trust-remote-code",))


def test_the_failing_setup_is_the_profile_itself() -> None:
    assert Setup(budget=16, topk=4, graphs=True, patches=frozenset(SETS), own_block=True) == FAILING
    assert setup_profile(BASE, FAILING, FAILING, SETS, 8) == replace(BASE, patches=SETS)


@pytest.mark.parametrize(
    ("change", "flags"),
    [
        ({"plain_draft": True}, (*BASE.extra_flags, "--speculative-draft-model-quantization", "unquant")),
        ({"cache": False}, (*BASE.extra_flags, "--disable-radix-cache")),
    ],
)
def test_a_trial_adds_its_flag_and_says_which(change: dict[str, bool], flags: tuple[str, ...]) -> None:
    setup = replace(FAILING, **change)
    assert setup_profile(BASE, FAILING, setup, SETS, 8).extra_flags == flags
    assert needed_flags(FAILING, setup) <= set(flags)


def test_a_trial_with_the_drafter_s_own_block_names_it() -> None:
    base = replace(BASE, extra_flags=())
    failing = setup_of(base, ())
    trial = setup_profile(base, failing, replace(failing, own_block=True), (), 8)
    assert trial.extra_flags == ("--speculative-dflash-block-size", "8")


def test_patch_sets_are_added_to_those_of_the_profile_in_their_order() -> None:
    failing = setup_of(BASE, ())
    setup = replace(failing, patches=frozenset(SETS))
    assert setup_profile(BASE, failing, setup, ("mine",), 8).patches == ("mine", *SETS)
