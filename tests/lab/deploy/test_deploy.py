"""The main job on both kinds of node: deploy, prove, roll back."""

from __future__ import annotations

import json

from ddtree_ops.patching.apply import apply_sets

from .conftest import ROOT, SERVICE, Operator


def test_a_deploy_takes_a_hand_written_unit_to_a_proven_release(fresh: Operator) -> None:
    node = fresh.deploy().node
    assert (node["outcome"], node["release"], node["previous"]) == ("confirmed", "1", "0")
    assert {gate["name"] for gate in node["gates"] if gate["passed"]} >= {"ready", "smoke"}
    assert fresh.status()["patches"] == ["verify-width", "graph-width"]
    assert fresh.events() == ["found 0", "armed 1", "confirmed 1"]
    assert fresh.healthy()


def test_an_operators_own_diff_is_staged_with_the_sets_and_named(fresh: Operator) -> None:
    (fresh.home / "mine.patch").write_text(
        "--- /dev/null\n+++ b/python/sglang/mine.py\n@@ -0,0 +1 @@\n+MINE = 1\n"
    )
    node = fresh.deploy("--patches", "mine.patch,verify-width,graph-width").node
    assert (node["outcome"], node["release"]) == ("confirmed", "1")
    assert fresh.status()["patches"] == ["mine.patch", "verify-width", "graph-width"]
    site = f"{fresh.host.state_dir.removeprefix(fresh.host.root)}/{SERVICE}/releases/1/site"
    assert fresh.file_on_node(f"{site}/sglang/mine.py").read_text() == "MINE = 1\n"
    gone = fresh.deploy("--budget", "8", "--patches", "gone.patch", code=2)
    assert "gone.patch" in gone.node["error"]["message"]
    assert fresh.healthy()


def test_an_unchanged_goal_restarts_nothing_in_four_round_trips(fresh: Operator) -> None:
    fresh.deploy()
    before = fresh.serving()
    ran = fresh.ops("deploy", "--yes", "--json", "--verbose", code=0)
    assert (ran.node["outcome"], ran.node["release"]) == ("unchanged", "1")
    assert ran.node["ssh_round_trips"] <= 4
    assert fresh.serving() == before


def test_an_engine_behind_an_api_key_is_proven_and_its_key_shown_nowhere(fresh: Operator) -> None:
    fresh.file_on_node("/etc/engine.env").write_text("ENGINE_KEY=s3cr3t-key\n")
    fresh.profile["environment_file"] = f"{fresh.host.root}/etc/engine.env"
    fresh.profile["extra_flags"] = [*fresh.profile.get("extra_flags", []), "--api-key", "${ENGINE_KEY}"]
    fresh.save()
    ran = fresh.deploy("--verbose")
    assert ran.node["outcome"] == "confirmed"
    load = ("--concurrency", "1", "--requests", "2", "--max-tokens", "16", "--workload", "poem")
    asked = (("smoke",), ("bench", *load), ("probe", "--json"), ("logs",), ("history", "--json"), ("plan",))
    for shown in (ran, *(fresh.ops(*words, code=0) for words in asked)):
        assert "s3cr3t-key" not in shown.out + shown.err
    assert "api_key='***'" in fresh.ops("logs", "--lines", "1000", code=0).out


def test_a_garbling_release_is_named_and_the_node_goes_back(fresh: Operator) -> None:
    _, unit = fresh.serving()
    node = fresh.deploy("--budget", "16", "--topk", "4", "--patches", "none", code=1).node
    assert (node["outcome"], node["release"], node["failed_release"]) == ("reverted", "0", "1")
    failed = [gate for gate in node["gates"] if not gate["passed"]]
    assert any(gate["prompt"] for gate in failed)
    assert fresh.serving()[1] == unit
    assert fresh.healthy()
    assert fresh.events()[-2:] == ["reverted 0", "failed 1"]
    assert fresh.file_on_node(
        f"{fresh.host.state_dir.removeprefix(fresh.host.root)}/{SERVICE}/releases/1/journal.log"
    ).exists()


def test_a_rollback_without_an_earlier_release_returns_to_the_state_found(fresh: Operator) -> None:
    _, unit = fresh.serving()
    fresh.deploy()
    node = fresh.ops("rollback", "--yes", "--json", code=0).node
    assert (node["outcome"], node["release"]) == ("confirmed", "0")
    assert fresh.serving()[1] == unit
    refused = fresh.ops("rollback", "--yes", "--json", code=3).node
    assert "no earlier" in refused["error"]["message"]


def test_a_rollback_goes_to_any_release_and_another_laptop_sees_it(fresh: Operator) -> None:
    fresh.deploy()
    fresh.deploy("--budget", "8")
    fresh.ops("rollback", "--yes", "--to", "1", code=0)
    fresh.home.joinpath("state").rename(fresh.home / "lost laptop")
    assert (fresh.status()["release"], fresh.status()["budget"]) == ("1", 16)
    changes = [entry["detail"].get("changes") for entry in fresh.entries() if entry["event"] == "confirmed"]
    assert changes[1:] == [["budget: 16 → 8"], ["budget: 8 → 16"]]


def test_a_dry_run_shows_the_plan_and_touches_nothing(fresh: Operator) -> None:
    before = fresh.serving()
    (node,) = fresh.ops("plan", "--json", code=0).json["nodes"]
    assert node["plan"]["changes"][:2] == ["budget: 7 → 16", "topk: 1 → 4"]
    assert "+        # ddtree-ops: verify-width" in node["plan"]["source_diff"]
    assert fresh.serving() == before
    assert not fresh.file_on_node(fresh.host.state_dir.removeprefix(fresh.host.root)).exists()


def test_adopting_keeps_the_unit_as_release_0_and_restarts_nothing(fresh: Operator) -> None:
    before = fresh.serving()
    (node,) = fresh.ops("adopt", "--json", code=0).json["nodes"]
    assert node["profile"]["extra_flags"] == ["--attention-backend", "triton", "--watchdog-timeout", "600"]
    assert (node["new"], node["profile"]["budget"]) == (True, 7)
    assert fresh.serving() == before
    assert fresh.status()["release"] is None or fresh.status()["release"] == "0"


def test_a_unit_changed_by_hand_after_a_deploy_becomes_a_release_of_its_own(fresh: Operator) -> None:
    fresh.deploy()
    unit = fresh.file_on_node(f"/etc/systemd/system/{SERVICE}.service")
    by_hand = unit.read_text().replace("--speculative-ddtree-budget 16", "--speculative-ddtree-budget 12")
    unit.write_text(by_hand)
    fresh.on_node("systemctl", "daemon-reload")
    fresh.deploy("--budget", "8")
    fresh.ops("rollback", "--yes", code=0)
    assert unit.read_text() == by_hand


def test_logs_print_the_engine_s_journal(fresh: Operator) -> None:
    assert "The server is fired up and ready to roll!" in fresh.ops("logs", "--lines", "200", code=0).out


def test_json_is_one_document_and_nothing_else_is_on_stdout(fresh: Operator) -> None:
    for words in (("probe",), ("status",), ("history",), ("plan",)):
        json.loads(fresh.ops(*words, "--json", code=0).out)


def test_sources_patched_in_place_by_our_own_set_are_recognised(fresh: Operator) -> None:
    (site,) = fresh.file_on_node("/opt/sglang/lib").glob("python3.*/site-packages")
    file = site / "sglang/srt/layers/attention/triton_backend.py"
    stock = file.read_text()
    sets = ROOT / "patches"
    made = apply_sets(["verify-width"], sets, lambda path: (site / path).read_text(), "0.5.11")
    file.write_text(made.files[0].after)
    try:
        assert "sources patched" in fresh.ops("probe", code=0).out
        assert "verify-width: applied" in fresh.ops("patch", "check", code=0).out
    finally:
        file.write_text(stock)
