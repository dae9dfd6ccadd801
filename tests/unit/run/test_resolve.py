"""What a goal needs is chosen from the profile and from what the node's SGLang can do."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_ops.model.errors import UsageError
from ddtree_ops.model.facts import DdtreeFlags, NodeFacts
from ddtree_ops.model.host import Host
from ddtree_ops.model.profile import Profile
from ddtree_ops.node.ssh import SshLink, SshTarget
from ddtree_ops.run.context import Asked
from ddtree_ops.run.resolve import (
    choose_sets,
    find_service,
    launch_of,
    provided_by,
    wanted_profile,
)

PATCHES = Path(__file__).parents[3] / "patches"


@pytest.mark.parametrize(
    ("changes", "ddtree", "sets"),
    [
        ({}, DdtreeFlags.OURS, ("verify-width", "graph-width")),
        ({"cuda_graph": False}, DdtreeFlags.OURS, ("verify-width",)),
        ({}, DdtreeFlags.ALGORITHM, ("verify-width", "graph-width")),
        ({}, DdtreeFlags.NONE, ("ddtree-engine",)),
        ({"budget": None, "topk": None}, DdtreeFlags.NONE, ()),
        ({"patches": ()}, DdtreeFlags.NONE, ()),
        ({"patches": ("verify-width",)}, DdtreeFlags.NONE, ("verify-width",)),
    ],
)
def test_a_goal_gets_the_sets_that_it_needs_on_its_sglang(
    changes: dict[str, object], ddtree: DdtreeFlags, sets: tuple[str, ...], profile: Profile
) -> None:
    assert choose_sets(replace(profile, **changes), ddtree) == sets


def test_stock_sglang_with_ddtree_engine_is_started_with_our_flags(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    stock = make_facts(sglang={"ddtree": DdtreeFlags.NONE})
    known = stock.sglang.known_flags - {"--speculative-ddtree-budget", "--speculative-ddtree-topk-cap"}
    stock = make_facts(sglang={"ddtree": DdtreeFlags.NONE, "known_flags": known})
    words = launch_of(profile, stock, provided_by(("ddtree-engine",), PATCHES)).argv
    assert words[-4:] == ("--speculative-ddtree-budget", "16", "--speculative-ddtree-topk-cap", "4")


def test_the_command_line_overrides_the_profile_and_none_leaves_it(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    asked = Asked(profile=profile, budget=8, cuda_graph=False)
    wanted = wanted_profile(make_facts(), asked, "sglang")
    assert (wanted.budget, wanted.topk, wanted.cuda_graph) == (8, 4, False)
    assert ("Service", "OOMScoreAdjust=-500") in wanted.unit_lines


@pytest.mark.parametrize("name", ["a;reboot", "$(x)", "a b", "../x", "-x"])
def test_a_unit_name_that_a_shell_could_misread_is_refused_before_any_connection(name: str) -> None:
    link = SshLink(SshTarget(name="n", address="nowhere.invalid"))
    with pytest.raises(UsageError, match="expected a unit name"):
        find_service(Asked(service=name), Host(name="n"), link)
