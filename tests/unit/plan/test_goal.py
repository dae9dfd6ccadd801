"""A profile and a node's facts make a release; the same goal has the same fingerprint under any id."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from ddtree_ops.config.unit import parse_unit, split_words
from ddtree_ops.engine.flags import engine_argv
from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.model.patch import PatchedFile, PatchedTree
from ddtree_ops.model.plan import Goal
from ddtree_ops.model.profile import Profile
from ddtree_ops.plan.adopt import adopt
from ddtree_ops.plan.goal import Launch, build_goal, next_id

ROOT = Path(__file__).parents[3]
TEMPLATE = (ROOT / "templates" / "engine.service.j2").read_text(encoding="utf-8")
GOLDEN = ROOT / "tests" / "golden" / "units"
TREE = PatchedTree(
    sglang="0.5.11",
    sets=("verify-width",),
    not_needed=(),
    files=(PatchedFile(path="sglang/a.py", before="a = 1\n", after="a = 2\n"),),
)


def goal_of(facts: NodeFacts, profile: Profile, release_id: str = "1", tree: PatchedTree = TREE) -> Goal:
    launch = Launch(argv=engine_argv(profile, facts.sglang.known_flags, facts.sglang.ddtree))
    return build_goal(
        facts=facts, profile=profile, tree=tree, launch=launch, template=TEMPLATE, release_id=release_id,
        by="me@here", created="2026-01-01T00:00:00+00:00",
    )  # fmt: skip


PROFILES = {
    "small": {},
    "chain": {"budget": None, "topk": None},
    "full": {
        "tp": 8,
        "cuda_graph": False,
        "graph_max_batch": 16,
        "extra_flags": ("--json-model-override-args", '{"a": "b c"}', "--quantization", "none"),
        "environment": (("NCCL_P2P_LEVEL", "SYS"), ("PYTHONPATH", "/opt/more"), ("GREETING", 'say "hi"')),
        "environment_file": "/etc/sglang/k26.env",
        "user": "sglang",
        "working_directory": "/var/lib/sglang",
        "unit_lines": (("Unit", "After=nvidia-persistenced.service"), ("Service", "OOMScoreAdjust=-500")),
    },
}


@pytest.mark.parametrize("name", PROFILES)
def test_a_rendered_unit_is_the_golden_one(
    name: str, make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    unit = goal_of(make_facts(), replace(profile, **PROFILES[name])).unit
    assert unit == (GOLDEN / f"{name}.service").read_text(encoding="utf-8")


def test_a_rendered_unit_is_adopted_as_the_profile_that_it_came_from(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    wanted = replace(profile, **(PROFILES["full"] | {"cuda_graph": True, "environment": (("A", "1 2"),)}))
    found = adopt(goal_of(make_facts(), wanted).unit, "sglang", name="p")
    site = "/var/lib/ddtree-ops/sglang/releases/1/site"
    assert found == replace(wanted, environment=(("A", "1 2"), ("PYTHONPATH", site)))


def test_the_same_goal_has_the_same_fingerprint_under_another_id(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    first, second = (goal_of(make_facts(), profile, number) for number in ("1", "7"))
    assert first.release.fingerprint == second.release.fingerprint
    assert first.unit != second.unit


@pytest.mark.parametrize("change", [{"budget": 8}, {"extra_flags": ("--x",)}, {"environment": (("A", "1"),)}])
def test_another_profile_has_another_fingerprint(
    change: dict[str, object], make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    before = goal_of(make_facts(), profile).release.fingerprint
    assert goal_of(make_facts(), replace(profile, **change)).release.fingerprint != before


def test_other_patched_content_has_another_fingerprint(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    other = replace(TREE, files=(replace(TREE.files[0], after="a = 3\n"),))
    before = goal_of(make_facts(), profile).release.fingerprint
    assert goal_of(make_facts(), profile, tree=other).release.fingerprint != before


def test_the_release_comes_first_on_the_engine_s_python_path(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    unit = parse_unit(goal_of(make_facts(), replace(profile, environment=(("PYTHONPATH", "/x"),))).unit)
    (word,) = [w for line in unit.values("Service", "Environment") for w in split_words(line)]
    assert word == "PYTHONPATH=/var/lib/ddtree-ops/sglang/releases/1/site:/x"


def test_ids_count_up_from_the_highest_number() -> None:
    assert [next_id(()), next_id(("0", "1", "10", "2")), next_id(("0", "odd"))] == ["0", "11", "1"]
