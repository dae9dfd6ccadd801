"""What the guard relies on from timers and from booting: the same on the stand-in as on systemd."""

from __future__ import annotations

import time
from itertools import pairwise

from .conftest import Done, Node, eventually


def mark(path: str) -> str:
    """A oneshot that leaves a line in a file each time that it runs."""
    return f"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo ran >> {path}'\n"


def runs(node: Node, path: str) -> int:
    file = node.file(path)
    return len(file.read_text().splitlines()) if file.exists() else 0


def test_on_active_sec_fires_once_and_soon(node: Node) -> None:
    node.unit("t1.service", mark(node.path("/var/lib/t1")), reload=False)
    node.unit("t1.timer", "[Timer]\nOnActiveSec=300ms\nAccuracySec=10ms\n")
    assert node.sh("systemctl", "start", "t1.timer") == Done(0, "", "")
    assert node.states("t1.timer") == ("active", "waiting", "success")
    eventually(lambda: runs(node, "/var/lib/t1"), 1)
    node.until("t1.timer", ActiveState="active", SubState="elapsed")
    assert node.show("t1.timer", "Unit", "NextElapseUSecMonotonic") == {
        "Unit": "t1.service",
        "NextElapseUSecMonotonic": "infinity",
    }


def test_a_passed_on_boot_sec_fires_at_once(node: Node) -> None:
    node.unit("t2.service", mark(node.path("/var/lib/t2")), reload=False)
    node.unit("t2.timer", "[Timer]\nOnBootSec=10ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t2.timer")
    eventually(lambda: runs(node, "/var/lib/t2"), 1)


def test_on_unit_active_sec_repeats(node: Node) -> None:
    node.unit("t3.service", mark(node.path("/var/lib/t3")), reload=False)
    node.unit("t3.timer", "[Timer]\nOnActiveSec=50ms\nOnUnitActiveSec=200ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t3.timer")
    eventually(lambda: runs(node, "/var/lib/t3") >= 3, True)
    node.until("t3.timer", ActiveState="active")


def test_on_unit_inactive_sec_counts_from_the_end_of_the_last_run(node: Node) -> None:
    path = node.path("/var/lib/t4")
    node.unit(
        "t4.service",
        f"[Service]\nType=oneshot\nExecStart=/bin/sh -c 'echo ran >> {path}; sleep 0.5'\n",
        reload=False,
    )
    node.unit("t4.timer", "[Timer]\nOnActiveSec=50ms\nOnUnitInactiveSec=300ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t4.timer")
    eventually(lambda: runs(node, "/var/lib/t4") >= 3, True)
    messages = node.journal("t4.service")
    times = [
        int(str(entry["__REALTIME_TIMESTAMP"])) / 1e6
        for entry in messages
        if "Starting" in str(entry["MESSAGE"])
    ]
    assert min(later - earlier for earlier, later in pairwise(times)) > 0.75


def test_a_restarted_timer_counts_from_the_restart(node: Node) -> None:
    node.unit("t5.service", mark(node.path("/var/lib/t5")), reload=False)
    node.unit("t5.timer", "[Timer]\nOnActiveSec=3s\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t5.timer")
    for _ in range(3):
        time.sleep(1.2)
        node.sh("systemctl", "restart", "t5.timer")
    assert runs(node, "/var/lib/t5") == 0
    eventually(lambda: runs(node, "/var/lib/t5"), 1)


def test_a_stopped_timer_does_not_fire(node: Node) -> None:
    node.unit("t6.service", mark(node.path("/var/lib/t6")), reload=False)
    node.unit("t6.timer", "[Timer]\nOnActiveSec=500ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t6.timer")
    assert node.sh("systemctl", "stop", "t6.timer") == Done(0, "", "")
    assert node.states("t6.timer")[:2] == ("inactive", "dead")
    time.sleep(0.8)
    assert runs(node, "/var/lib/t6") == 0


def test_stopping_a_timer_lets_its_service_run_on(node: Node) -> None:
    node.unit("t7.service", "[Service]\nExecStart=/bin/sleep 100\n", reload=False)
    node.unit("t7.timer", "[Timer]\nOnActiveSec=50ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t7.timer")
    node.until("t7.service", ActiveState="active")
    assert node.states("t7.timer")[:2] == ("active", "running")
    node.sh("systemctl", "stop", "t7.timer")
    assert node.states("t7.service")[0] == "active"


def test_a_unit_may_stop_its_own_timer_and_remove_it(node: Node) -> None:
    folder = node.path("/etc/systemd/system")
    script = f"systemctl stop t8.timer; rm {folder}/t8.timer {folder}/t8.service; systemctl daemon-reload; echo over"
    node.unit("t8.service", f"[Service]\nType=oneshot\nExecStart=/bin/sh -c '{script}'\n", reload=False)
    node.unit("t8.timer", "[Timer]\nOnActiveSec=50ms\nAccuracySec=10ms\n")
    node.sh("systemctl", "start", "t8.timer")
    eventually(lambda: "over" in node.messages("t8.service"), True)
    node.until("t8.service", ActiveState="inactive")
    assert node.show("t8.timer", "LoadState", "ActiveState") == {
        "LoadState": "not-found",
        "ActiveState": "inactive",
    }


def test_enabled_units_start_in_order_after_a_reboot(node: Node) -> None:
    path, install = node.path("/var/lib/t9"), "[Install]\nWantedBy=multi-user.target\n"
    guard = f"""\
[Unit]
Before=t9.service
[Service]
ExecStartPre=/bin/sh -c 'sleep 1; echo settled >> {path}'
ExecStart=/bin/sh -c 'echo guard >> {path}; sleep 100'
{install}"""
    node.unit("t9a.service", guard, reload=False)
    node.unit(
        "t9.service",
        f"[Service]\nExecStart=/bin/sh -c 'sleep 0.3; echo engine >> {path}; sleep 100'\n{install}",
    )
    node.sh("systemctl", "enable", "t9a.service", "t9.service")
    boot = node.file("/proc/sys/kernel/random/boot_id")
    before = node.sh("cat", node.path("/proc/sys/kernel/random/boot_id")).out if boot.exists() else ""
    node.lab.reboot(node.host.name)
    eventually(
        lambda: node.file("/var/lib/t9").exists() and len(node.file("/var/lib/t9").read_text().split()), 3
    )
    assert node.file("/var/lib/t9").read_text().split() == ["settled", "guard", "engine"]
    node.until("t9.service", ActiveState="active")
    assert not before or node.sh("cat", node.path("/proc/sys/kernel/random/boot_id")).out != before


def test_a_reboot_ends_every_process_and_starts_what_is_enabled_alone(node: Node) -> None:
    node.unit("t10.service", "[Service]\nExecStart=/bin/sleep 5125\n")
    node.sh("systemctl", "start", "t10.service")
    node.lab.reboot(node.host.name)
    eventually(lambda: answers(node), True)
    assert node.count("sleep 5125") == 0
    assert node.states("t10.service") == ("inactive", "dead", "success")


def test_an_enabled_timer_waits_again_after_a_reboot(node: Node) -> None:
    node.unit("t11.service", mark(node.path("/var/lib/t11")), reload=False)
    node.unit(
        "t11.timer", "[Timer]\nOnActiveSec=500ms\nAccuracySec=10ms\n[Install]\nWantedBy=timers.target\n"
    )
    node.sh("systemctl", "enable", "t11.timer")
    assert runs(node, "/var/lib/t11") == 0
    node.lab.reboot(node.host.name)
    eventually(lambda: runs(node, "/var/lib/t11"), 1)


def test_files_and_the_journal_outlive_a_reboot(node: Node) -> None:
    node.unit("t12.service", "[Service]\nType=oneshot\nExecStart=/bin/echo before\n")
    node.sh("systemctl", "start", "t12.service")
    node.file("/var/lib/t12").write_text("kept")
    eventually(lambda: "before" in node.messages("t12.service"), True)
    node.sh("sync")
    node.sh("journalctl", "--sync")
    node.lab.reboot(node.host.name)
    eventually(lambda: answers(node), True)
    assert node.file("/var/lib/t12").read_text() == "kept"
    assert "before" in node.messages("t12.service")
    assert "before" not in node.messages("t12.service", "-b")


def answers(node: Node) -> bool:
    try:
        return node.sh("systemctl", "is-system-running").out.strip() in ("running", "degraded")
    except (OSError, TimeoutError, *node.link_errors):
        return False
