"""What the tool reads from journals and from systemd-analyze: the same on the stand-in as on systemd."""

from __future__ import annotations

from .conftest import Done, Node, eventually


def prints(script: str, *lines: str) -> str:
    return "\n".join(["[Service]", "Type=oneshot", f"ExecStart=/bin/sh -c '{script}'", *lines, ""])


def test_lines_of_a_unit_carry_message_unit_and_invocation(node: Node) -> None:
    # it lives until its lines are read: journald looks a dead unit's invocation up in vain
    node.unit("j1.service", "[Service]\nExecStart=/bin/sh -c 'echo one; echo two >&2; sleep 100'\n")
    node.sh("systemctl", "start", "j1")
    eventually(lambda: {"one", "two"} <= set(node.messages("j1")), True)
    entry = next(entry for entry in node.journal("j1") if entry["MESSAGE"] == "one")
    assert entry["_SYSTEMD_UNIT"] == "j1.service"
    assert entry["SYSLOG_IDENTIFIER"] == "sh"
    assert len(str(entry["_SYSTEMD_INVOCATION_ID"])) == 32
    assert int(str(entry["__REALTIME_TIMESTAMP"])) > 1e15
    assert {"__CURSOR", "__MONOTONIC_TIMESTAMP", "_BOOT_ID", "_PID", "PRIORITY"} <= set(entry)


def test_the_managers_own_lines_about_a_unit_are_among_its_lines(node: Node) -> None:
    node.unit("j2.service", "[Unit]\nDescription=Two\n[Service]\nExecStart=/bin/false\n")
    node.sh("systemctl", "start", "j2")
    node.until("j2", ActiveState="failed")
    said = [
        "Started j2.service - Two.",
        "j2.service: Main process exited, code=exited, status=1/FAILURE",
        "j2.service: Failed with result 'exit-code'.",
    ]
    eventually(lambda: node.messages("j2"), said)


def test_a_restart_is_told_line_by_line(node: Node) -> None:
    script = "[Unit]\nDescription=Three\n[Service]\nExecStart=/bin/sleep 100\n"
    node.unit("j3.service", script)
    node.sh("systemctl", "start", "j3")
    node.sh("systemctl", "restart", "j3")
    said = [
        "Started j3.service - Three.",
        "Stopping j3.service - Three...",
        "j3.service: Deactivated successfully.",
        "Stopped j3.service - Three.",
        "Started j3.service - Three.",
    ]
    eventually(lambda: node.messages("j3"), said)


def test_a_crash_loop_is_told_line_by_line(node: Node) -> None:
    node.unit(
        "j4.service",
        "[Unit]\nStartLimitBurst=2\n[Service]\nExecStart=/bin/false\nRestart=always\nRestartSec=50ms\n",
    )
    node.sh("systemctl", "start", "j4")
    node.until("j4", ActiveState="failed")
    dead = [
        "j4.service: Main process exited, code=exited, status=1/FAILURE",
        "j4.service: Failed with result 'exit-code'.",
    ]
    again = ["j4.service: Scheduled restart job, restart counter is at {}.", "Stopped j4.service."]
    said = ["Started j4.service.", *dead, again[0].format(1), again[1], "Started j4.service.", *dead]
    said += [again[0].format(2), again[1], "j4.service: Start request repeated too quickly.", dead[1]]
    said += ["Failed to start j4.service."]
    eventually(lambda: node.messages("j4"), said)


def test_a_cursor_gives_what_came_after_it_and_nothing_twice(node: Node) -> None:
    node.unit("j5.service", prints("echo $$INVOCATION_ID"))
    node.sh("systemctl", "start", "j5")
    eventually(lambda: len(node.journal("j5")), 4)
    cursor = str(node.journal("j5")[-1]["__CURSOR"])
    assert node.journal("j5", f"--after-cursor={cursor}") == []
    node.sh("systemctl", "start", "j5")
    eventually(lambda: len(node.journal("j5", f"--after-cursor={cursor}")), 4)
    shown = node.sh("journalctl", "-q", "-u", "j5", "-o", "cat", "--show-cursor", "-n", "1").out.splitlines()
    assert shown[-1].startswith("-- cursor: s=")


def test_the_last_lines_come_oldest_first(node: Node) -> None:
    node.unit("j6.service", prints("sleep 0.2; for i in 1 2 3 4 5; do echo line $$i; done; sleep 0.2"))
    node.sh("systemctl", "start", "j6")
    eventually(lambda: node.messages("j6", "-n", "4")[:2], ["line 4", "line 5"])
    assert node.messages("j6", "--lines=0") == []


def test_one_invocation_can_be_asked_for(node: Node) -> None:
    node.unit("j7.service", prints("echo $$INVOCATION_ID; sleep 0.1", "RemainAfterExit=yes"))
    node.sh("systemctl", "start", "j7")
    node.sh("systemctl", "restart", "j7")
    invocation = node.show("j7", "InvocationID")["InvocationID"]

    def lines() -> list[str]:
        done = node.sh("journalctl", "-q", "--no-pager", "-o", "cat", f"_SYSTEMD_INVOCATION_ID={invocation}")
        return done.out.splitlines()

    eventually(lines, [invocation])


def test_progress_bars_and_colours_come_as_bytes(node: Node) -> None:
    script = r"printf \"\\033[32mgreen\\033[0m\\na\\rb\\n\\ttab ü\\n\"; sleep 100"
    node.unit("j8.service", f"[Service]\nExecStart=/bin/sh -c '{script}'\n")
    node.sh("systemctl", "start", "j8")

    def printed() -> list[object]:
        return [
            entry["MESSAGE"]
            for entry in node.journal("j8")
            if "_SYSTEMD_INVOCATION_ID" in entry and entry["_PID"] != "1"
        ]

    eventually(printed, [list(b"\x1b[32mgreen\x1b[0m"), list(b"a\rb"), "\ttab ü"])


def test_empty_lines_are_dropped_and_long_ones_are_null_unless_all_is_asked_for(node: Node) -> None:
    node.unit(
        "j9.service", prints('echo; echo "  "; head -c 5000 /dev/zero | tr "\\\\\\\\0" x; echo; sleep 0.1')
    )
    node.sh("systemctl", "start", "j9")

    def printed(*options: str) -> list[object]:
        return [entry["MESSAGE"] for entry in node.journal("j9", *options) if entry["_PID"] != "1"]

    eventually(lambda: len(printed()) > 0, True)
    assert [text for text in printed() if text != "  "] == [None]
    assert [text for text in printed("--all") if text != "  "] == ["x" * 5000]


def test_nothing_found_is_said_or_kept_quiet(node: Node) -> None:
    assert node.sh("journalctl", "--no-pager", "-u", "j10") == Done(0, "-- No entries --\n", "")
    assert node.sh("journalctl", "--no-pager", "-q", "-u", "j10") == Done(0, "", "")


def test_following_shows_new_lines_at_once(node: Node) -> None:
    node.unit("j11.service", "[Service]\nExecStart=/bin/sh -c 'sleep 1; echo late; sleep 100'\n")
    node.sh("systemctl", "start", "--no-block", "j11")
    done = node.shell("timeout 2 journalctl -f -o cat -u j11 -n 0 | grep -m1 late")
    assert done.out == "late\n"


def test_verify_is_content_with_a_good_unit(node: Node) -> None:
    node.unit(
        "j12.service", "[Unit]\nDescription=x\n[Service]\nExecStart=/bin/true\nX-Ours=1\n[X-Ours]\nkey=1\n"
    )
    path = node.path("/etc/systemd/system/j12.service")
    assert node.sh("systemd-analyze", "verify", path) == Done(0, "", "")


def test_verify_names_unknown_keys_on_stderr_and_still_exits_0(node: Node) -> None:
    text = "[Unit]\nFoo=1\n[Service]\n# note\nExecStart=/bin/true\nBar = 2\nRestart=sometimes\nType=weird\nnothing\n"
    node.unit("j13.service", text + "KillMode=soft\nLimitNOFILE=many\n[Weird]\na=1\n", reload=False)
    path = node.path("/etc/systemd/system/j13.service")
    said = [
        f"{path}:2: Unknown key 'Foo' in section [Unit], ignoring.",
        f"{path}:6: Unknown key 'Bar' in section [Service], ignoring.",
        f"{path}:7: Failed to parse service restart specifier, ignoring: sometimes",
        f"{path}:8: Failed to parse service type, ignoring: weird",
        f"{path}:9: Missing '=', ignoring line.",
        f"{path}:10: Failed to parse kill mode specification, ignoring: soft",
        f"{path}:11: Failed to parse resource value, ignoring: many",
        f"{path}:12: Unknown section 'Weird'. Ignoring.",
    ]
    done = node.sh("systemd-analyze", "verify", path)
    assert (done.code, done.out, done.err.splitlines()) == (0, "", said)


def test_verify_exits_1_for_a_missing_program_or_unit(node: Node) -> None:
    node.unit("j14.service", "[Service]\nExecStart=/nowhere/python -m x\n", reload=False)
    path = node.path("/etc/systemd/system/j14.service")
    said = "j14.service: Command /nowhere/python is not executable: No such file or directory\n"
    assert node.sh("systemd-analyze", "verify", path) == Done(1, "", said)
    assert node.sh("systemd-analyze", "verify", "/nowhere/j15.service").code == 1


def test_verify_refuses_a_service_without_a_command(node: Node) -> None:
    node.unit("j16.service", "[Service]\nType=simple\n", reload=False)
    path = node.path("/etc/systemd/system/j16.service")
    said = "j16.service: Service has no ExecStart=, ExecStop=, or SuccessAction=. Refusing.\n"
    assert node.sh("systemd-analyze", "verify", path) == Done(
        1, "", said + "Unit j16.service has a bad unit file setting.\n"
    )
    node.sh("systemctl", "daemon-reload")
    assert node.sh("systemctl", "start", "j16") == Done(
        1, "", "Failed to start j16.service: Unit j16.service has a bad unit file setting.\n" + ADVICE
    )
    assert node.show("j16", "LoadState") == {"LoadState": "bad-setting"}


ADVICE = "See system logs and 'systemctl status j16.service' for details.\n"
