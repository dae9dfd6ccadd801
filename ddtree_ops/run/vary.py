"""Profiles that differ from a base in what a trial or an arm changes, and in nothing else."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from ddtree_ops.engine.words import flag_value, without_flags
from ddtree_ops.measure.isolate import Setup
from ddtree_ops.measure.sweep import Arm, ArmKind
from ddtree_ops.model.profile import Profile

NO_CACHE = "--disable-radix-cache"
DRAFT_QUANTIZATION = "--speculative-draft-model-quantization"
DRAFT_BLOCK = "--speculative-dflash-block-size"
SPECULATIVE = "--speculative-"  # how every flag of speculation begins
WIDTHS = ("verify-width", "graph-width")  # the patch sets that a trial may add


def arm_profile(base: Profile, arm: Arm) -> Profile:
    """The base with an arm's tree and graph mode."""
    tree = arm.kind is ArmKind.TREE
    varied = replace(
        base,
        budget=arm.budget if tree else None,
        topk=arm.topk if tree else None,
        cuda_graph=arm.graphs,
    )
    return undrafted(varied) if arm.kind is ArmKind.AUTOREGRESSIVE else varied


def undrafted(profile: Profile) -> Profile:
    """The profile without any speculation."""
    flags = without_flags(profile.extra_flags, lambda name: name.startswith(SPECULATIVE))
    return replace(profile, drafter=None, budget=None, topk=None, extra_flags=flags)


def setup_of(profile: Profile, sets: Iterable[str]) -> Setup:
    """A profile's factors, with the patch sets that its release has."""
    return Setup(
        budget=profile.budget,
        topk=profile.topk,
        graphs=profile.cuda_graph,
        patches=frozenset(sets) & frozenset(WIDTHS),
        drafter=profile.drafter is not None,
        plain_draft=flag_value(profile.extra_flags, DRAFT_QUANTIZATION) == "unquant",
        own_block=flag_value(profile.extra_flags, DRAFT_BLOCK) is not None,
        cache=NO_CACHE not in profile.extra_flags,
    )


def setup_profile(base: Profile, failing: Setup, setup: Setup, sets: tuple[str, ...], block: int) -> Profile:
    """The base, whose factors are `failing` and whose patch sets are `sets`, changed into a setup."""
    added = tuple(name for name in WIDTHS if name in setup.patches - failing.patches)
    varied = replace(
        base, budget=setup.budget, topk=setup.topk, cuda_graph=setup.graphs, patches=(*sets, *added)
    )
    if not setup.drafter:
        varied = undrafted(varied)
    flags = varied.extra_flags
    if setup.plain_draft and not failing.plain_draft:
        flags = (*without_flags(flags, DRAFT_QUANTIZATION.__eq__), DRAFT_QUANTIZATION, "unquant")
    if setup.own_block and not failing.own_block:
        flags = (*without_flags(flags, DRAFT_BLOCK.__eq__), DRAFT_BLOCK, str(block))
    if not setup.cache and failing.cache:
        flags = (*flags, NO_CACHE)
    return replace(varied, extra_flags=flags)


def needed_flags(failing: Setup, setup: Setup) -> frozenset[str]:
    """The flags that a trial of this setup adds to the failing profile's."""
    pairs = (
        (setup.plain_draft and not failing.plain_draft, DRAFT_QUANTIZATION),
        (setup.own_block and not failing.own_block, DRAFT_BLOCK),
        (failing.cache and not setup.cache, NO_CACHE),
    )
    return frozenset(flag for needed, flag in pairs if needed)
