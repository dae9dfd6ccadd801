"""The guard on real nodes: whoever dies, and whenever, the service ends proven in one of two releases."""

from __future__ import annotations

import hashlib
import itertools
import shutil
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from ddtree_ops.lab.hosts import Lab
from ddtree_ops.lab.ports import free_port
from ddtree_ops.model.errors import OpsError, Refused
from ddtree_ops.model.facts import Guard
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import JournalEntry, Release
from ddtree_ops.node.lease import LeaseKeeper
from ddtree_ops.node.node import Node
from ddtree_ops.node.ssh import SshLink, SshTarget
from ddtree_ops.node.values import Entry, Proof

from .conftest import Node as LabNode

TINY = Path(__file__).with_name("tiny_engine.py")
RUN, BY = "run-1", "ann@laptop"
LONG, SHORT = 60.0, 2.0
PROOF_S = 20.0
GUARD = "ddtree-ops-guard-{}.service"
GOOD, BAD = "", "--broken"
_number = itertools.count()


def target(lab: Lab) -> SshTarget:
    host = lab.status()[0]
    return SshTarget(
        name=host.name,
        address=host.address,
        port=host.port,
        user=host.user,
        identity_file=str(host.identity_file),
        known_hosts=(str(host.known_hosts),),
        ssh_config="/dev/null",
    )


@dataclass
class Rig:
    """One service with an engine that the guard can judge, and its operator's view of it."""

    lab: Lab
    on: LabNode
    service: str
    port: int
    link: SshLink
    node: Node

    def unit(self, options: str) -> str:
        return f"""\
[Unit]
Description=An engine of a few lines
[Service]
ExecStart=/usr/bin/env python3 {self.on.path("/opt/tiny_engine.py")} --port {self.port} {options}
Restart=on-failure
RestartSec=1
KillMode=mixed
[Install]
WantedBy=multi-user.target
"""

    def release(self, name: str, options: str) -> Release:
        text = self.unit(options)
        return Release(
            id=name,
            fingerprint=hashlib.sha256(text.encode()).hexdigest(),
            profile=Profile(name="tiny", service=self.service, venv="/opt/v", model="/m", port=self.port),
            sglang="0.5.11",
            patches=(),
            unit_sha256=hashlib.sha256(text.encode()).hexdigest(),
            site=False,
            created="2026-01-01T00:00:00Z",
            by=BY,
        )

    def found(self, options: str = GOOD) -> None:
        """A unit written by hand, enabled and running."""
        self.on.unit(f"{self.service}.service", self.unit(options))
        assert self.on.sh("systemctl", "enable", self.service).code == 0
        assert self.on.sh("systemctl", "start", self.service).code == 0

    def until_serving(self) -> None:
        self.until(lambda: bool(self.node.observe(port=self.port).listeners))

    def armed(self, lease_s: float, *, options: str = BAD, proof: bool = True) -> Guard:
        """All that a deploy does before it installs."""
        self.node.found(self.release("0", GOOD))
        judged = Proof(port=self.port, text="a poem", deadline_s=PROOF_S)
        guard = self.node.arm(
            run=RUN, by=BY, release="1", previous="0", lease_s=lease_s, proof=judged if proof else None
        )
        self.node.stage(self.release("1", options), self.unit(options))
        return guard

    def deployed(self, lease_s: float, *, options: str = BAD) -> None:
        """All that a deploy does until the new release runs."""
        self.armed(LONG, options=options)
        self.node.install("1", run=RUN)
        self.node.restart(run=RUN)
        if lease_s != LONG:
            self.node.renew(run=RUN, lease_s=lease_s)
            # the timer was set for the first lease, so start it anew for this one
            self.node.arm(
                run=RUN,
                by=BY,
                release="1",
                previous="0",
                lease_s=lease_s,
                proof=Proof(port=self.port, text="a poem", deadline_s=PROOF_S),
            )

    def until(self, look: Callable[[], bool], seconds: float = 90) -> None:
        deadline = time.monotonic() + seconds
        while not look():
            assert time.monotonic() < deadline, self.story()
            time.sleep(0.2)

    def until_settled(self) -> JournalEntry:
        """Waits until the guard has gone; returns what it wrote last."""
        self.until(lambda: not self.guard_files())
        return self.node.history()[-1]

    def looked(self) -> bool:
        """Whether the guard's first look, which arming asks for, is over."""
        ended = f"{GUARD.format(self.service)}: Deactivated successfully."
        return ended in self.on.messages(GUARD.format(self.service))

    def guard_files(self) -> list[str]:
        units = self.on.file("/etc/systemd/system")
        state = self.on.file(f"/var/lib/ddtree-ops/{self.service}")
        return sorted(
            path.name
            for path in (
                *units.glob(f"*guard-{self.service}*"),
                *units.glob(f"*.wants/*guard-{self.service}*"),
                *state.glob("guard.json"),
            )
        )

    def unit_in_place(self) -> str:
        return self.on.file(f"/etc/systemd/system/{self.service}.service").read_text()

    def events(self) -> list[tuple[str, str, str | None]]:
        return [(entry.by, entry.event, entry.release) for entry in self.node.history()]

    def invocation(self) -> str:
        return self.node.observe().unit.invocation

    def story(self) -> str:
        guard = self.on.messages(GUARD.format(self.service))
        return "\n".join(map(str, [*self.on.messages(f"{self.service}.service"), *guard, *self.events()]))


def make_rig(lab: Lab, on: LabNode, link: SshLink) -> Rig:
    service = f"tiny{next(_number)}"
    on.file("/opt").mkdir(exist_ok=True)
    shutil.copy(TINY, on.file("/opt/tiny_engine.py"))
    return Rig(lab, on, service, free_port(), link, Node(on.host.name, link, service))


@pytest.fixture
def rig(lab: Lab, node: LabNode) -> Iterator[Rig]:
    with lab.entered(), SshLink(target(lab)) as link:
        made = make_rig(lab, node, link)
        yield made
        made.on.units += [f"{made.service}.service", f"ddtree-ops-guard-{made.service}.timer"]
        made.on.units += [GUARD.format(made.service)]


def rebooted(rig: Rig) -> Rig:
    """The same service after a power cut, over a new link."""
    rig.link.close()
    rig.lab.reboot(rig.on.host.name)
    deadline = time.monotonic() + 60
    while True:
        link = SshLink(target(rig.lab))
        try:
            link.__enter__()
            break
        except OpsError:
            assert time.monotonic() < deadline
            time.sleep(0.2)
    rig.link, rig.node = link, Node(rig.on.host.name, link, rig.service)
    return rig


def test_a_confirmed_release_stays_and_the_guard_goes(rig: Rig) -> None:
    rig.found()
    rig.deployed(LONG, options="--load 0.1")
    rig.node.confirm(run=RUN, by=BY, release="1")
    assert rig.guard_files() == []
    assert rig.unit_in_place() == rig.unit("--load 0.1")
    assert rig.events() == [(BY, "armed", "1"), (BY, "confirmed", "1")]
    facts = rig.node.probe(venv="/opt/none", port=rig.port)
    assert (facts.current, facts.previous, facts.guard, facts.releases) == ("1", None, None, ("0", "1"))


def test_the_node_reverts_and_proves_by_itself_when_the_lease_runs_out(rig: Rig) -> None:
    rig.found()
    rig.deployed(SHORT)
    ended = rig.until_settled()
    assert (ended.by, ended.event, ended.release) == ("guard", "reverted", "0")
    assert ended.detail["proven"] is True
    assert ended.detail["evidence"] == "16 of 16 greedy tokens agree with prefill"
    assert ended.detail["failed_release"] == "1"
    assert rig.unit_in_place() == rig.unit(GOOD)
    assert rig.node.observe().unit.active == "active"
    assert rig.node.probe(venv="/opt/none").current is None
    kept = rig.on.file(f"/var/lib/ddtree-ops/{rig.service}/releases/1/journal.log").read_text()
    assert BAD in kept


def test_a_process_that_was_never_replaced_is_not_restarted(rig: Rig) -> None:
    rig.found()
    rig.until_serving()
    before = rig.invocation()
    rig.armed(SHORT)
    rig.node.install("1", run=RUN)
    ended = rig.until_settled()
    assert (ended.event, ended.detail["restarted"], rig.invocation()) == ("reverted", False, before)
    assert rig.unit_in_place() == rig.unit(GOOD)


def test_after_a_reboot_the_unconfirmed_release_never_starts(rig: Rig) -> None:
    rig.found()
    rig.deployed(LONG)
    rig = rebooted(rig)
    ended = rig.until_settled()
    assert (ended.event, ended.release, ended.detail["why"]) == ("reverted", "0", "the node was rebooted")
    assert ended.detail["restarted"] is False
    assert rig.unit_in_place() == rig.unit(GOOD)
    started = rig.on.messages(f"{rig.service}.service", "-b")
    assert not [line for line in started if BAD in str(line)]
    assert rig.node.observe(port=rig.port).unit.active == "active"


def test_a_revert_that_a_reboot_cuts_short_is_finished_after_it(rig: Rig) -> None:
    rig.found("--load 4")
    rig.until_serving()
    rig.deployed(SHORT)
    rig.until(
        lambda: (seen := rig.node.probe(venv="/opt/none").guard) is not None and seen.state == "reverting"
    )
    rig = rebooted(rig)
    ended = rig.until_settled()
    assert (ended.event, ended.release, ended.detail["proven"]) == ("reverted", "0", True), ended.detail
    assert rig.unit_in_place() == rig.unit("--load 4")
    assert [event for _, event, _ in rig.events()] == ["armed", "reverting", "reverted"]


def test_a_guard_killed_while_it_proves_is_started_again_and_does_not_restart_twice(rig: Rig) -> None:
    rig.found("--load 4")
    rig.until_serving()
    rig.deployed(SHORT)
    rig.until(lambda: bool(_loading_again(rig)))
    serving = rig.invocation()
    pid = int(rig.on.show(GUARD.format(rig.service), "MainPID")["MainPID"])
    rig.lab.kill(rig.on.host.name, pid)
    ended = rig.until_settled()
    assert (ended.event, ended.detail["proven"], rig.invocation()) == ("reverted", True, serving), (
        ended.detail
    )


def _loading_again(rig: Rig) -> bool:
    """Whether the old release's second process has begun to load."""
    lines = [str(line) for line in rig.on.messages(f"{rig.service}.service")]
    return len([line for line in lines if line.startswith("loading") and "--load 4" in line]) == 2


def test_an_engine_that_answers_wrong_after_the_revert_is_called_unproven(rig: Rig) -> None:
    rig.found(BAD)
    rig.deployed(SHORT, options=GOOD)
    ended = rig.until_settled()
    assert (ended.event, ended.release, ended.detail["proven"]) == ("unproven", "0", False)
    assert ended.detail["evidence"] == "1 of 16 greedy tokens agree with prefill, the first other one at 1"
    assert rig.unit_in_place() == rig.unit(BAD)


def test_a_guard_acts_though_units_are_reloaded_all_the_while(rig: Rig) -> None:
    rig.found()
    rig.deployed(SHORT)
    rig.on.shell("(while systemctl daemon-reload; do :; done) > /dev/null 2>&1 & echo $! > /tmp/reloading")
    try:
        ended = rig.until_settled()
    finally:
        rig.on.shell("kill $(cat /tmp/reloading)")
    assert (ended.event, ended.detail["proven"]) == ("reverted", True), ended.detail


def test_an_engine_that_wants_a_key_is_proven_with_it_and_nobody_sees_it(rig: Rig) -> None:
    rig.on.file("/opt/secret.env").write_text("# of the engine\nKEY='s3cr3t-of-it'\n")
    keyed = f"--api-key ${{KEY}}\nEnvironmentFile={rig.on.path('/opt/secret.env')}"
    rig.found(keyed)
    rig.deployed(SHORT, options=f"{BAD} {keyed}")
    ended = rig.until_settled()
    assert (ended.event, ended.detail["proven"]) == ("reverted", True), ended.detail
    assert rig.node.api_key() == "s3cr3t-of-it"
    seen = rig.node.observe(tail=20)
    assert "--api-key" in seen.unit.exec_start
    told = [*seen.unit.exec_start, *(line.message for line in seen.lines)]
    assert "loading --port" in " ".join(told)
    assert "s3cr3t" not in " ".join([*told, str(rig.node.history())])


def test_an_engine_that_can_not_start_after_the_revert_is_called_unproven(rig: Rig) -> None:
    rig.found()
    rig.until_serving()
    rig.on.file(f"/etc/systemd/system/{rig.service}.service").write_text(
        rig.unit("--nonsense").replace("on-failure", "no")
    )
    rig.on.sh("systemctl", "daemon-reload")
    rig.deployed(SHORT)
    ended = rig.until_settled()
    assert (ended.event, ended.detail["proven"]) == ("unproven", False)
    assert "has failed (exit-code)" in str(ended.detail["evidence"])


def test_a_guard_that_wakes_after_the_confirmation_just_goes(rig: Rig) -> None:
    rig.found()
    rig.deployed(SHORT, options="--load 0.1")
    rig.node.note(Entry(run=RUN, by=BY, event="confirmed", release="1"))  # an operator killed right here
    rig.until_serving()
    serving = rig.invocation()
    ended = rig.until_settled()
    assert (ended.by, ended.event, rig.invocation()) == (BY, "confirmed", serving)
    assert rig.unit_in_place() == rig.unit("--load 0.1")


def test_a_look_under_way_when_the_guard_goes_leaves_no_failed_unit(rig: Rig) -> None:
    rig.found()
    rig.deployed(LONG, options="--load 0.1")
    guard = GUARD.format(rig.service)
    rig.until(rig.looked)
    slow = rig.on.file(f"/etc/systemd/system/{guard}.d/slow.conf")
    slow.parent.mkdir()
    slow.write_text("[Service]\nExecStartPre=/bin/sleep 10\n")
    rig.on.sh("systemctl", "daemon-reload")
    rig.on.sh("systemctl", "start", "--no-block", guard)
    rig.on.until(guard, SubState="start-pre")
    rig.node.confirm(run=RUN, by=BY, release="1")
    rig.until(lambda: rig.on.states(guard)[0] in ("inactive", "failed"))
    slow.unlink()
    slow.parent.rmdir()
    rig.on.sh("systemctl", "daemon-reload")
    assert (rig.guard_files(), rig.on.states(guard)) == ([], ("inactive", "dead", "success"))


def test_a_timer_that_outlives_its_guard_takes_itself_away_without_a_failure(rig: Rig) -> None:
    rig.found()
    rig.armed(LONG)
    guard = GUARD.format(rig.service)
    rig.until(rig.looked)
    rig.on.file(f"/var/lib/ddtree-ops/{rig.service}/guard.json").unlink()
    rig.on.sh("systemctl", "start", guard)
    rig.until(lambda: not rig.guard_files())
    rig.until(lambda: rig.on.states(guard)[0] in ("inactive", "failed"))
    assert rig.on.states(guard) == ("inactive", "dead", "success")


def test_an_operator_who_dies_after_putting_back_leaves_the_proof_to_the_guard(rig: Rig) -> None:
    rig.found()
    rig.deployed(SHORT)
    rig.node.renew(run=RUN, lease_s=SHORT)
    reverted = rig.node.revert(run=RUN, by=BY, why="smoke failed")
    assert (reverted.release, reverted.restarted, reverted.by_guard) == ("0", True, False)
    ended = rig.until_settled()
    assert (ended.by, ended.event, ended.detail["why"]) == ("guard", "reverted", "smoke failed")
    assert ended.detail["restarted"] is False
    again = rig.node.revert(run=RUN, by=BY, why="smoke failed")
    assert (again.by_guard, again.event, again.release) == (True, "reverted", "0")


def test_a_node_without_a_unit_has_none_again(rig: Rig) -> None:
    rig.armed(LONG, options=GOOD)
    rig.node.install("1", run=RUN)
    rig.node.restart(run=RUN)
    rig.until_serving()
    assert rig.on.show(rig.service, "UnitFileState") == {"UnitFileState": "enabled"}
    reverted = rig.node.revert(run=RUN, by=BY, why="smoke failed")
    assert reverted.restarted is False
    rig.until(lambda: rig.node.observe().unit.active == "inactive")
    rig.node.conclude(run=RUN, by=BY, release="0", event="reverted")
    units = rig.on.file("/etc/systemd/system")
    assert sorted(path.name for path in units.rglob(f"*{rig.service}*")) == []


def test_once_the_guard_has_acted_its_operator_is_refused(rig: Rig) -> None:
    rig.found()
    rig.deployed(SHORT)
    rig.until_settled()
    for late in (
        lambda: rig.node.confirm(run=RUN, by=BY, release="1"),
        lambda: rig.node.install("1", run=RUN),
        lambda: rig.node.restart(run=RUN),
        lambda: rig.node.renew(run=RUN, lease_s=LONG),
    ):
        with pytest.raises(Refused, match="guard has ended this run: reverted"):
            late()
    assert rig.unit_in_place() == rig.unit(GOOD)


def test_a_lease_that_is_kept_holds_the_guard_back_and_its_loss_is_told(rig: Rig) -> None:
    rig.found()
    rig.node.lock(who=BY, run=RUN, ttl_s=SHORT)
    rig.deployed(SHORT)
    with LeaseKeeper(rig.node, run=RUN, lease_s=SHORT) as keeper:
        time.sleep(SHORT * 2)
        keeper.check()
        assert rig.node.probe(venv="/opt/none").guard is not None
        rig.node.force_unlock()
        rig.node.lock(who="bob@desk", run=RUN, ttl_s=SHORT)
        keeper.check()
    rig.node.revert(run=RUN, by=BY, why="done")
    rig.node.conclude(run=RUN, by=BY, release="0", event="reverted")
    assert rig.guard_files() == []


def test_another_operator_waits_until_the_guard_is_done(rig: Rig) -> None:
    rig.found()
    rig.deployed(LONG)
    with pytest.raises(Refused, match="run run-1 has armed it") as refused:
        rig.node.lock(who="bob@desk", run="run-2", ttl_s=5, steal=True)
    assert refused.value.exit_code == 3
    with pytest.raises(Refused, match="run run-1 has armed it"):
        rig.node.arm(run="run-2", by="bob@desk", release="2", previous="0", lease_s=5, proof=None)
    rig.node.revert(run=RUN, by=BY, why="done")
    rig.node.conclude(run=RUN, by=BY, release="0", event="reverted")


def test_nothing_is_installed_without_a_guard(rig: Rig) -> None:
    rig.found()
    rig.node.found(rig.release("0", GOOD))
    rig.node.stage(rig.release("1", BAD), rig.unit(BAD))
    with pytest.raises(Refused, match="none is armed"):
        rig.node.install("1", run=RUN)
    assert rig.unit_in_place() == rig.unit(GOOD)
