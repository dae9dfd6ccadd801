"""What the tool relies on from systemctl and services: the same on the stand-in as on systemd."""

from __future__ import annotations

from .conftest import Done, Node, eventually

SLEEPER = """\
[Unit]
Description=A sleeper
[Service]
ExecStart=/bin/sleep 1000
[Install]
WantedBy=multi-user.target
"""


def service(exec_start: str, *lines: str, unit: str = "") -> str:
    return "\n".join(
        ["[Unit]", "Description=Contract", unit, "[Service]", f"ExecStart={exec_start}", *lines, ""]
    )


def test_a_started_service_is_active_and_has_a_process(node: Node) -> None:
    node.unit("c1.service", SLEEPER)
    assert node.sh("systemctl", "start", "c1.service") == Done(0, "", "")
    assert node.states("c1") == ("active", "running", "success")
    shown = node.show(
        "c1", "MainPID", "NRestarts", "LoadState", "FragmentPath", "InvocationID", "UnitFileState"
    )
    assert node.shell(f"kill -0 {shown['MainPID']}").code == 0
    assert len(shown["InvocationID"]) == 32
    assert shown["FragmentPath"] == node.path("/etc/systemd/system/c1.service")
    assert (shown["NRestarts"], shown["LoadState"], shown["UnitFileState"]) == ("0", "loaded", "disabled")


def test_a_stop_by_sigterm_is_a_clean_end(node: Node) -> None:
    node.unit("c2.service", SLEEPER)
    node.sh("systemctl", "start", "c2")
    assert node.sh("systemctl", "stop", "c2") == Done(0, "", "")
    assert node.states("c2") == ("inactive", "dead", "success")
    assert node.show("c2", "MainPID") == {"MainPID": "0"}


def test_restart_gives_a_new_invocation(node: Node) -> None:
    node.unit("c3.service", SLEEPER)
    node.sh("systemctl", "start", "c3")
    before = node.show("c3", "InvocationID", "MainPID")
    assert node.sh("systemctl", "restart", "c3") == Done(0, "", "")
    after = node.show("c3", "InvocationID", "MainPID")
    assert before["InvocationID"] != after["InvocationID"]
    assert before["MainPID"] != after["MainPID"]


def test_restart_without_block_returns_before_a_slow_stop_is_over(node: Node) -> None:
    node.unit("c4.service", service("""/bin/sh -c 'trap "sleep 2; exit 0" TERM; sleep 1000 & wait'"""))
    node.sh("systemctl", "start", "c4")
    first = node.show("c4", "InvocationID")["InvocationID"]
    assert node.sh("systemctl", "restart", "--no-block", "c4") == Done(0, "", "")
    assert node.show("c4", "ActiveState", "InvocationID") == {
        "ActiveState": "deactivating",
        "InvocationID": first,
    }
    node.until("c4", ActiveState="active")
    assert node.show("c4", "InvocationID")["InvocationID"] != first


def test_a_simple_service_that_dies_at_once_starts_without_complaint(node: Node) -> None:
    node.unit("c5.service", service("/bin/false"))
    assert node.sh("systemctl", "restart", "c5") == Done(0, "", "")
    node.until("c5", ActiveState="failed")
    shown = node.show("c5", "Result", "ExecMainStatus", "ExecMainCode", "NRestarts")
    assert shown == {"Result": "exit-code", "ExecMainStatus": "1", "ExecMainCode": "1", "NRestarts": "0"}


def test_restart_on_failure_counts_and_then_gives_up(node: Node) -> None:
    node.unit("c6.service", service("/bin/false", "Restart=on-failure", "RestartSec=50ms"))
    node.sh("systemctl", "start", "c6")
    node.until("c6", ActiveState="failed")
    assert node.show("c6", "NRestarts", "Result") == {"NRestarts": "5", "Result": "exit-code"}
    refused = node.sh("systemctl", "start", "c6")
    assert refused.code == 1
    assert "c6.service" in refused.err


def test_reset_failed_forgets_the_failure_and_lets_it_start_again(node: Node) -> None:
    node.unit("c7.service", service("/bin/false", "Restart=on-failure", "RestartSec=50ms"))
    node.sh("systemctl", "start", "c7")
    node.until("c7", ActiveState="failed")
    assert node.sh("systemctl", "reset-failed", "c7") == Done(0, "", "")
    assert node.states("c7") == ("inactive", "dead", "success")
    assert node.show("c7", "NRestarts") == {"NRestarts": "0"}
    assert node.sh("systemctl", "start", "c7").code == 0


def test_between_two_tries_the_unit_is_activating(node: Node) -> None:
    node.unit("c8.service", service("/bin/false", "Restart=always", "RestartSec=30"))
    node.sh("systemctl", "start", "c8")
    node.until("c8", SubState="auto-restart")
    assert node.show("c8", "ActiveState", "Result", "NRestarts") == {
        "ActiveState": "activating",
        "Result": "exit-code",
        "NRestarts": "0",
    }
    assert node.sh("systemctl", "stop", "c8").code == 0
    assert node.show("c8", "ActiveState")["ActiveState"] in ("inactive", "failed")


def test_a_killed_main_process_is_a_failure_by_signal(node: Node) -> None:
    node.unit("c9.service", SLEEPER)
    node.sh("systemctl", "start", "c9")
    node.lab.kill(node.host.name, int(node.show("c9", "MainPID")["MainPID"]))
    node.until("c9", ActiveState="failed")
    assert node.show("c9", "Result", "ExecMainCode", "ExecMainStatus") == {
        "Result": "signal",
        "ExecMainCode": "2",
        "ExecMainStatus": "9",
    }


def test_a_process_that_kills_itself_on_a_planned_stop_leaves_a_failed_unit(node: Node) -> None:
    node.unit(
        "c10.service",
        service("""/bin/sh -c 'trap "kill -9 $$$$" TERM; sleep 1000 & wait'""", "KillMode=mixed"),
    )
    node.sh("systemctl", "start", "c10")
    assert node.sh("systemctl", "stop", "c10").code == 0
    assert node.states("c10") == ("failed", "failed", "signal")


def test_between_the_halves_of_a_restart_a_unit_has_failed_with_a_job_queued(node: Node) -> None:
    dies = """/bin/sh -c 'trap "kill -9 $$$$" TERM; sleep 1000 & wait'"""
    node.unit("c10b.service", service("/bin/sleep 3", "Type=oneshot"))
    node.unit("c10a.service", service(dies, "KillMode=mixed", unit="After=c10b.service"))
    node.sh("systemctl", "start", "c10a")
    assert node.show("c10a", "Job").get("Job", "") == ""
    node.sh("systemctl", "start", "--no-block", "c10b")
    node.sh("systemctl", "restart", "--no-block", "c10a")
    node.until("c10a", ActiveState="failed")
    assert int(node.show("c10a", "Job")["Job"]) > 0
    node.until("c10a", ActiveState="active")
    assert node.show("c10a", "Job").get("Job", "") == ""


def test_a_stop_that_takes_too_long_ends_by_sigkill(node: Node) -> None:
    loop = """/bin/sh -c 'trap "" TERM; while :; do sleep 0.1; done'"""
    node.unit("c11.service", service(loop, "TimeoutStopSec=1", "KillMode=mixed"))
    node.sh("systemctl", "start", "c11")
    assert node.sh("systemctl", "stop", "c11").code == 0
    assert node.states("c11") == ("failed", "failed", "timeout")


def test_kill_mode_mixed_leaves_no_child_behind(node: Node) -> None:
    script = """/bin/sh -c 'trap "exit 0" TERM; (trap "" TERM; exec sleep 5123) & wait'"""
    node.unit("c12.service", service(script, "KillMode=mixed"))
    node.sh("systemctl", "start", "c12")
    eventually(lambda: node.count("sleep 5123"), 1)
    node.sh("systemctl", "stop", "c12")
    assert node.count("sleep 5123") == 0


def test_children_go_when_the_main_process_dies(node: Node) -> None:
    node.unit("c13.service", service("""/bin/sh -c 'setsid sleep 5124 & wait'""", "KillMode=mixed"))
    node.sh("systemctl", "start", "c13")
    eventually(lambda: node.count("sleep 5124"), 1)
    node.lab.kill(node.host.name, int(node.show("c13", "MainPID")["MainPID"]))
    eventually(lambda: node.count("sleep 5124"), 0)


def test_a_oneshot_is_waited_for_and_rests_afterwards(node: Node) -> None:
    node.unit("c14.service", service("/bin/sleep 0.3", "Type=oneshot"))
    assert node.sh("systemctl", "start", "--no-block", "c14").code == 0
    assert node.states("c14")[:2] == ("activating", "start")
    assert node.sh("systemctl", "start", "c14") == Done(0, "", "")
    assert node.states("c14") == ("inactive", "dead", "success")


def test_a_failing_oneshot_fails_its_start(node: Node) -> None:
    node.unit("c15.service", service("/bin/false", "Type=oneshot"))
    done = node.sh("systemctl", "start", "c15")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith(
        "Job for c15.service failed because the control process exited with error code."
    )
    assert node.states("c15") == ("failed", "failed", "exit-code")


def test_a_oneshot_that_remains_is_active_and_exited(node: Node) -> None:
    node.unit("c16.service", service("/bin/true", "Type=oneshot", "RemainAfterExit=yes"))
    assert node.sh("systemctl", "start", "c16").code == 0
    assert node.states("c16") == ("active", "exited", "success")


def test_a_start_that_takes_too_long_fails_with_timeout(node: Node) -> None:
    node.unit("c17.service", service("/bin/sleep 100", "Type=oneshot", "TimeoutStartSec=1"))
    assert node.sh("systemctl", "start", "c17").code == 1
    assert node.states("c17") == ("failed", "failed", "timeout")


def test_a_failing_start_pre_keeps_the_service_down(node: Node) -> None:
    node.unit("c18.service", service("/bin/sleep 100", "ExecStartPre=/bin/false"))
    assert node.sh("systemctl", "start", "c18").code == 1
    assert node.states("c18") == ("failed", "failed", "exit-code")


def test_a_missing_program_shows_status_203(node: Node) -> None:
    node.unit("c19.service", service("/nowhere/engine --port 1"))
    assert node.sh("systemctl", "start", "c19").code == 0
    node.until("c19", ActiveState="failed")
    assert node.show("c19", "Result", "ExecMainStatus") == {"Result": "exit-code", "ExecMainStatus": "203"}


def test_a_missing_working_directory_shows_status_200(node: Node) -> None:
    node.unit("c20.service", service("/bin/sleep 100", "WorkingDirectory=/nowhere"))
    node.sh("systemctl", "start", "c20")
    node.until("c20", ActiveState="failed")
    assert node.show("c20", "Result", "ExecMainStatus") == {"Result": "exit-code", "ExecMainStatus": "200"}


def test_environment_limits_and_directory_reach_the_process(node: Node) -> None:
    node.file("/var/lib/c21.env").write_text('# comment\nFROM_FILE="two words"\nOVER=file\n')
    node.unit(
        "c21.service",
        service(
            """/bin/sh -c 'echo "$A|$B|$FROM_FILE|$OVER|$(ulimit -n)|$PWD|${INVOCATION_ID:+id}"'""",
            *('Environment=A=1 "B=b c"', "Environment=OVER=unit", "LimitNOFILE=777", "WorkingDirectory=/usr"),
            f"EnvironmentFile={node.path('/var/lib/c21.env')}",
            "Type=oneshot",
        ).replace("$", "$$"),
    )
    assert node.sh("systemctl", "start", "c21").code == 0
    assert "1|b c|two words|file|777|/usr|id" in node.messages("c21")


def test_a_missing_environment_file_fails_the_start_unless_optional(node: Node) -> None:
    node.unit("c22.service", service("/bin/sleep 100", "EnvironmentFile=-/nowhere.env"))
    node.unit("c23.service", service("/bin/sleep 100", "EnvironmentFile=/nowhere.env"))
    assert node.sh("systemctl", "start", "c22").code == 0
    assert node.sh("systemctl", "start", "c23").code == 1
    assert node.states("c23") == ("failed", "failed", "resources")


def test_words_are_split_and_filled_in_alike(node: Node) -> None:
    node.unit(
        "c24.service",
        service(
            """/bin/echo 'a  b' "c d" e\\x20f %n %% ${V} $V $$V \\"q\\"  '{"json": 1}'""",
            *('Environment="V=x y"', "Type=oneshot"),
        ),
    )
    node.sh("systemctl", "start", "c24")
    assert 'a  b c d e f c24.service % x y x y $V "q" {"json": 1}' in node.messages("c24")


def test_a_unit_that_is_not_there_is_told_apart_from_one_that_is(node: Node) -> None:
    assert node.show("c25", "LoadState", "ActiveState", "FragmentPath", "UnitFileState") == {
        "LoadState": "not-found",
        "ActiveState": "inactive",
        "FragmentPath": "",
        "UnitFileState": "",
    }
    start = node.sh("systemctl", "start", "c25")
    assert start == Done(5, "", "Failed to start c25.service: Unit c25.service not found.\n")
    stop = node.sh("systemctl", "stop", "c25")
    assert stop == Done(5, "", "Failed to stop c25.service: Unit c25.service not loaded.\n")
    reset = node.sh("systemctl", "reset-failed", "c25")
    assert reset == Done(
        1, "", "Failed to reset failed state of unit c25.service: Unit c25.service not loaded.\n"
    )


def test_a_replaced_file_counts_only_after_daemon_reload(node: Node) -> None:
    node.unit("c26.service", service("/bin/sleep 100"))
    node.sh("systemctl", "start", "c26")
    node.unit("c26.service", service("/bin/sleep 200"), reload=False)
    before = node.show("c26", "NeedDaemonReload", "ExecStart")
    assert before["NeedDaemonReload"] == "yes"
    assert "/bin/sleep 100" in before["ExecStart"]
    node.sh("systemctl", "daemon-reload")
    after = node.show("c26", "NeedDaemonReload", "ExecStart", "ActiveState")
    assert (after["NeedDaemonReload"], after["ActiveState"]) == ("no", "active")
    assert "path=/bin/sleep ; argv[]=/bin/sleep 200 ; ignore_errors=no" in after["ExecStart"]


def test_drop_ins_are_read_and_named(node: Node) -> None:
    node.unit("c27.service", service("/bin/sleep 100"), reload=False)
    folder = node.file("/etc/systemd/system/c27.service.d")
    folder.mkdir()
    (folder / "more.conf").write_text("[Service]\nExecStart=\nExecStart=/bin/sleep 300\n")
    node.sh("systemctl", "daemon-reload")
    shown = node.show("c27", "DropInPaths", "ExecStart")
    assert shown["DropInPaths"] == node.path("/etc/systemd/system/c27.service.d/more.conf")
    assert "argv[]=/bin/sleep 300 ;" in shown["ExecStart"]
    cat = node.sh("systemctl", "cat", "c27").out
    assert cat.startswith(f"# {node.path('/etc/systemd/system/c27.service')}\n[Unit]\n")
    assert f"\n# {shown['DropInPaths']}\n[Service]\n" in cat
    (folder / "more.conf").unlink()
    folder.rmdir()


def test_enable_and_disable_say_so_and_show(node: Node) -> None:
    node.unit("c28.service", SLEEPER)
    link = node.path("/etc/systemd/system/multi-user.target.wants/c28.service")
    target = node.path("/etc/systemd/system/c28.service")
    assert node.sh("systemctl", "is-enabled", "c28") == Done(1, "disabled\n", "")
    assert node.sh("systemctl", "enable", "c28") == Done(0, "", f"Created symlink {link} → {target}.\n")
    assert node.sh("systemctl", "is-enabled", "c28") == Done(0, "enabled\n", "")
    assert node.sh("systemctl", "disable", "c28") == Done(0, "", f'Removed "{link}".\n')


def test_several_units_are_shown_in_order_with_a_blank_line_between(node: Node) -> None:
    node.unit("c29.service", SLEEPER)
    done = node.sh("systemctl", "show", "c29.service", "c30.service", "-p", "Id,LoadState", "--no-pager")
    assert done == Done(0, "Id=c29.service\nLoadState=loaded\n\nId=c30.service\nLoadState=not-found\n", "")


def test_is_active_and_is_failed_answer_by_exit_status(node: Node) -> None:
    node.unit("c31.service", SLEEPER)
    assert node.sh("systemctl", "is-active", "c31") == Done(3, "inactive\n", "")
    node.sh("systemctl", "start", "c31")
    assert node.sh("systemctl", "is-active", "c31") == Done(0, "active\n", "")
    assert node.sh("systemctl", "is-failed", "c31") == Done(1, "active\n", "")


def test_a_stop_takes_the_place_of_a_start_under_way(node: Node) -> None:
    node.unit("c32.service", service("/bin/sleep 100", "ExecStartPre=/bin/sleep 50"))
    node.sh("systemctl", "start", "--no-block", "c32")
    node.until("c32", SubState="start-pre")
    assert node.sh("systemctl", "stop", "c32").code == 0
    assert node.show("c32", "ActiveState")["ActiveState"] in ("inactive", "failed")


def test_a_unit_whose_file_goes_while_its_start_pre_runs_fails_and_may_come_again(node: Node) -> None:
    text = service("/bin/sleep 1000", "ExecStartPre=/bin/sleep 5")
    node.unit("c26.service", text)
    node.sh("systemctl", "start", "--no-block", "c26")
    node.until("c26", SubState="start-pre")
    node.file("/etc/systemd/system/c26.service").unlink()
    assert node.sh("systemctl", "daemon-reload").code == 0
    node.until("c26", ActiveState="failed")
    assert node.states("c26") == ("failed", "failed", "resources")
    assert node.show("c26", "Job").get("Job", "") == ""
    node.unit("c26.service", text)
    assert node.sh("systemctl", "start", "c26").code == 0
    assert node.states("c26")[0] == "active"


def test_a_stop_that_ignores_dependencies_does_not_wait_for_a_unit_that_is_ordered_behind(node: Node) -> None:
    slow = """/bin/sh -c 'trap "sleep 8; exit 0" TERM; sleep 1000 & wait'"""
    node.unit("c27b.service", service(slow, "KillMode=mixed"))
    node.unit("c27a.service", service("/bin/sleep 1000", unit="Before=c27b.service"))
    node.sh("systemctl", "start", "c27a", "c27b")
    node.sh("systemctl", "restart", "--no-block", "c27b")
    node.until("c27b", ActiveState="deactivating")
    assert node.sh("systemctl", "stop", "--job-mode=ignore-dependencies", "c27a") == Done(0, "", "")
    assert (node.states("c27a")[0], node.states("c27b")[0]) == ("inactive", "deactivating")


def test_listed_units_can_be_read_as_json(node: Node) -> None:
    import json

    node.unit("c33.service", SLEEPER)
    node.sh("systemctl", "start", "c33")
    done = node.sh("systemctl", "list-units", "--type=service", "--all", "--no-pager", "--output=json")
    rows = {row["unit"]: row for row in json.loads(done.out)}
    assert (rows["c33.service"]["load"], rows["c33.service"]["active"]) == ("loaded", "active")


def test_a_pattern_shows_the_loaded_units_that_match(node: Node) -> None:
    for name in ("c34-a", "c34-b"):
        node.unit(f"{name}.service", SLEEPER)
        node.sh("systemctl", "start", name)
    done = node.sh("systemctl", "show", "--property=Id,ActiveState", "c34-a.service", "c34-*.service")
    blocks = [dict(line.split("=", 1) for line in block.splitlines()) for block in done.out.split("\n\n")]
    assert {block["Id"] for block in blocks} == {"c34-a.service", "c34-b.service"}
    assert {block["ActiveState"] for block in blocks} == {"active"}


def test_the_manager_tells_its_version(node: Node) -> None:
    done = node.sh("systemctl", "show", "--property=Version")
    assert done.code == 0
    assert done.out.startswith("Version=")
    assert node.sh("systemctl", "--version").out.startswith("systemd ")
