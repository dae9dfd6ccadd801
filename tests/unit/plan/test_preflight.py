"""Preflight objects to what cannot work, before anything is touched, with the node's own numbers."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.facts import DdtreeFlags, Gpu, Guard, Listener, NodeFacts, NodeFile, Sources
from ddtree_ops.model.profile import Profile
from ddtree_ops.plan.preflight import (
    MIB,
    Intent,
    ModelShape,
    graph_memory_mib,
    objections,
    preflight,
    warnings,
)

GPU = Gpu(
    index=0, name="H200", arch="sm_90", driver="580", memory_total_mib=143_000, memory_used_mib=0, link="PCIe"
)
GUARD = Guard(run="r", release="2", previous="1", lease_left_s=30, state="armed")
SHAPE = ModelShape(vocab=163_840, context=262_144)

OBJECTIONS: list[tuple[str, dict[str, Any], dict[str, Any], int, str]] = [
    ("no root", {"root": False, "user": "ops"}, {}, 3, "sudo: got user ops without root rights"),
    ("no systemd", {"systemd": None}, {}, 3, "systemd: got none, expected systemd as PID 1"),
    ("disk full", {"disk_free_mib": 12}, {}, 3, "disk of /var/lib/ddtree-ops: got 12 MiB free, expected at least 256"),
    ("guard armed", {"guard": GUARD}, {}, 3, "guard: got run r waiting to be confirmed, expected none"),
    ("no venv", {"venv_python": None}, {}, 3, "venv: got no Python at /opt/venv/bin/python"),
    ("no sglang", {"sglang": {"sources": Sources.MISSING}}, {}, 3, "sglang: got no sglang in /opt/venv"),
    (
        "modified",
        {"sglang": {"sources": Sources.MODIFIED, "modified": (NodeFile(path="sglang/a.py", sha256="0"),)}},
        {}, 3, "sources: got 1 modified file(s) (sglang/a.py), expected the wheel's own",
    ),
    ("no record", {"sglang": {"sources": Sources.UNVERIFIED}}, {}, 3, "sources: got an install without RECORD"),
    ("drafter missing", {"paths": (("/models/d", False),)}, {}, 3, "drafter: got no /models/d on the node"),
    (
        "port taken",
        {"listeners": (Listener(port=30001, address="127.0.0.1", pid=9, process="nginx"),)},
        {}, 3, "port 30001: got nginx (pid 9) listening, expected it free or held by sglang.service",
    ),
    ("budget 0", {}, {"budget": 0}, 2, "budget: got 0, expected at least 1"),
    ("budget -3", {}, {"budget": -3}, 2, "budget: got -3, expected at least 1"),
    ("topk 0", {}, {"topk": 0}, 2, "topk: got 0, expected at least 1"),
    ("topk alone", {}, {"budget": None}, 2, "topk: got 4 without a budget"),
    ("no drafter", {}, {"drafter": None}, 3, "drafter: got none, expected a DFlash drafter"),
    ("no ddtree", {"sglang": {"ddtree": DdtreeFlags.NONE}}, {}, 3, "ddtree: got SGLang 0.5.11, which takes no"),
    ("topk over vocabulary", {}, {"topk": 163_841}, 2, "topk: got 163841, expected at most the model's vocabulary"),
    (
        "graphs too large", {"gpus": (GPU,)}, {"budget": 128, "graph_max_batch": 512},
        3, "budget: got 128, whose graphs need 189,896 MiB for KV indices, mask and logits, expected at most the 17,160 MiB",
    ),
    (
        "simulated acceptance", {}, {"environment": (("SGLANG_SIMULATE_ACC_LEN", "4"),)},
        3, "environment: got SGLANG_SIMULATE_ACC_LEN=4, expected it unset",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    ("facts", "changes", "code", "message"),
    [case[1:] for case in OBJECTIONS],
    ids=[case[0] for case in OBJECTIONS],
)
def test_what_cannot_work_is_refused_with_its_exit_code(
    facts: dict[str, Any],
    changes: dict[str, Any],
    code: int,
    message: str,
    make_facts: Callable[..., NodeFacts],
    profile: Profile,
) -> None:
    with pytest.raises(OpsError) as caught:
        preflight(make_facts(**facts), Intent(profile=replace(profile, **changes), shape=SHAPE))
    assert caught.value.exit_code == code
    assert str(caught.value).startswith(f"gpu1: {message}")


def test_a_healthy_node_meets_no_objection(make_facts: Callable[..., NodeFacts], profile: Profile) -> None:
    assert list(objections(make_facts(gpus=(GPU,)), Intent(profile=profile, shape=SHAPE))) == []


def test_our_own_listener_is_no_objection(make_facts: Callable[..., NodeFacts], profile: Profile) -> None:
    ours = Listener(port=30001, address="127.0.0.1", pid=1, unit="sglang.service")
    assert list(objections(make_facts(listeners=(ours,)), Intent(profile=profile))) == []


def test_a_patch_set_that_brings_the_flags_answers_for_a_stock_sglang(
    make_facts: Callable[..., NodeFacts], profile: Profile
) -> None:
    intent = Intent(profile=profile, provides=frozenset({"ddtree-flags"}))
    assert list(objections(make_facts(sglang={"ddtree": DdtreeFlags.NONE}), intent)) == []


def test_a_skewed_clock_and_missing_gpus_are_said_and_stop_nothing(
    make_facts: Callable[..., NodeFacts],
) -> None:
    lines = warnings(make_facts(clock_skew_s=-90.0, gpu_note="no nvidia-smi on this node"))
    assert lines[0].startswith("clock: the node's clock is -90 s off yours")
    assert lines[1] == "gpu: no nvidia-smi on this node"


@pytest.mark.parametrize(("value", "lines"), [("s3cr3t", 2), ("${KEY}", 1), ("$KEY", 1)])
def test_a_secret_in_a_unit_s_text_is_warned_of_and_not_repeated(
    value: str, lines: int, make_facts: Callable[..., NodeFacts]
) -> None:
    facts = make_facts()
    text = (facts.unit.text or "").replace("--quantization none", f"--api-key {value}")
    told = warnings(replace(facts, unit=replace(facts.unit, text=text)))
    assert (len(told), value in " ".join(told)) == (lines, False)


def test_graphs_take_indices_mask_logits_and_partial_sums_for_each_token(profile: Profile) -> None:
    small = replace(profile, budget=7, graph_max_batch=2, tp=2)  # 16 tokens
    flags = replace(small, extra_flags=("--context-length=1024",))
    shape = ModelShape(vocab=2048, context=2048, heads=8, value_dim=63)
    indices, mask, logits, sums = 8 * 2048, 2048 + 8, 4 * 2048 // 2, 4 * (8 // 2) * 8 * 64
    assert graph_memory_mib(small, shape) == 16 * (indices + mask + logits + sums) / MIB
    assert graph_memory_mib(flags, shape) == 16 * (indices // 2 + 1024 + 8 + logits + sums) / MIB
    assert graph_memory_mib(replace(small, cuda_graph=False), shape) is None
