"""The verbs one by one, on a node in a folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from ddtree_ops.node.agent.main import answer

from .conftest import NEW, OLD, SERVICE, Folder, manifest

LOCK = {"who": "ann", "run": "r1", "ttl_s": 60}


class TestLock:
    def test_a_second_operator_is_refused_with_who_holds_it(self, folder: Folder) -> None:
        folder.ok("lock", **LOCK)
        error = folder.error("lock", who="bob", run="r2", ttl_s=60)
        assert (error["kind"], error["what"]) == ("refused", "lock")
        assert error["message"].startswith("held by ann since ")

    def test_the_same_run_takes_it_again_and_keeps_since(self, folder: Folder) -> None:
        first = folder.ok("lock", **LOCK)
        again = folder.ok("lock", **{**LOCK, "ttl_s": 600})
        assert (again["since"], again["expires_in_s"] > 500) == (first["since"], True)

    def test_one_whose_lease_is_over_or_of_another_boot_is_taken_over(self, folder: Folder) -> None:
        folder.ok("lock", **{**LOCK, "ttl_s": 0})
        assert folder.ok("lock", who="bob", run="r2", ttl_s=60)["who"] == "bob"
        folder.boot()
        assert folder.ok("lock", who="eve", run="r3", ttl_s=60)["who"] == "eve"

    def test_only_its_owner_or_force_gives_it_back(self, folder: Folder) -> None:
        folder.ok("lock", **LOCK)
        assert folder.ok("unlock", run="r2") is None
        assert folder.ok("unlock", force=True)["who"] == "ann"
        assert folder.ok("unlock", run="r1") is None

    def test_a_renewal_fails_once_another_holds_it(self, folder: Folder) -> None:
        folder.ok("lock", **LOCK)
        folder.ok("lock", who="bob", run="r2", ttl_s=60, steal=True)
        assert "held by bob" in folder.error("renew", run="r1", lease_s=60)["message"]


class TestFound:
    def test_a_found_release_holds_the_units_bytes(self, folder: Folder) -> None:
        for release, unit in (
            ("0", b"[Service]\r\nExecStart=/bin/caf\xe9\n"),
            ("3", b"[Service]\n# changed by hand\n"),
        ):
            folder.unit.write_bytes(unit)
            assert folder.ok("found", manifest=manifest(release)) is True
            assert folder.ok("found", manifest=manifest(release)) is False
            assert (folder.state / f"releases/{release}/{SERVICE}.service").read_bytes() == unit
        assert folder.ok("history")["releases"] == [manifest("0"), manifest("3")]

    @pytest.mark.parametrize("kind", ["absent", "link"])
    def test_a_missing_or_linked_unit_comes_back_as_it_was(
        self, folder: Folder, kind: str, tmp_path: Path
    ) -> None:
        (tmp_path / "elsewhere.service").write_text(OLD)
        if kind == "link":
            folder.unit.symlink_to(tmp_path / "elsewhere.service")
        folder.ok("found", manifest=manifest("0"))
        assert folder.ok("unit_of", release="0") == (OLD if kind == "link" else None)
        folder.ok("stage", manifest=manifest("1"), unit=NEW, base=None, files=[])
        for release in ("1", "0"):
            folder.ok("arm", run="r", by="ann", release=release, previous="0", lease_s=60)
            folder.ok("install", run="r", release=release)
        assert folder.unit.is_symlink() is (kind == "link")
        assert folder.unit.exists() is (kind == "link")


class TestStage:
    @pytest.fixture
    def base(self, in_memory: Path) -> Path:
        site = in_memory / "venv"
        for name in ("a.py", "srt/b.py", "srt/__pycache__/b.pyc"):
            (site / "sglang" / name).parent.mkdir(parents=True, exist_ok=True)
            (site / "sglang" / name).write_text(f"base {name}\n")
        return site

    def test_a_tree_shares_what_is_unchanged_and_never_what_is_patched(
        self, folder: Folder, base: Path
    ) -> None:
        files = [
            {"path": "sglang/srt/b.py", "text": "patched\r\n"},
            {"path": "sglang/new/c.py", "text": "new\n"},
        ]
        request = {"manifest": manifest("1"), "unit": NEW, "base": str(base), "files": files}
        assert folder.ok("stage", **request) is True
        assert folder.ok("stage", **request) is False
        site = folder.state / "releases/1/site"
        assert sorted(str(p.relative_to(site)) for p in site.rglob("*") if p.is_file()) == [
            "sglang/a.py", "sglang/new/c.py", "sglang/srt/b.py",
        ]  # fmt: skip
        assert (site / "sglang/srt/b.py").read_bytes() == b"patched\r\n"
        assert (base / "sglang/srt/b.py").read_text() == "base srt/b.py\n"
        assert folder.ok("unit_of", release="1") == NEW

    @pytest.mark.parametrize(
        "path", ["../x", "/etc/passwd", "sglang/../../x", "sglang", "other/a.py", "sglang//a"]
    )
    def test_a_file_outside_the_package_is_refused(self, folder: Folder, base: Path, path: str) -> None:
        error = folder.error(
            "stage", manifest=manifest("1"), unit=NEW, base=str(base), files=[{"path": path, "text": ""}]
        )
        assert (error["kind"], "expected a path below sglang/" in error["message"]) == ("usage", True)
        assert not (folder.state / "releases/1").exists()

    def test_an_id_that_holds_something_else_is_refused(self, folder: Folder) -> None:
        folder.ok("stage", manifest=manifest("1"), unit=NEW, base=None, files=[])
        error = folder.error(
            "stage", manifest={"id": "1", "fingerprint": "other"}, unit=NEW, base=None, files=[]
        )
        assert (error["kind"], error["hint"]) == ("refused", "someone else staged it meanwhile: plan again")

    def test_a_base_without_sglang_is_refused_and_leaves_nothing(
        self, folder: Folder, tmp_path: Path
    ) -> None:
        error = folder.error("stage", manifest=manifest("1"), unit=NEW, base=str(tmp_path), files=[])
        assert "no package at" in error["message"]
        assert list((folder.state / "releases").iterdir()) == []


class TestJournal:
    def test_a_line_torn_by_a_power_cut_spoils_no_other(self, folder: Folder) -> None:
        entry = {"run": "r", "by": "ann", "event": "deploy", "release": None, "detail": {}}
        folder.ok("note", entries=[entry])
        with (folder.state / "journal.jsonl").open("a") as journal:
            journal.write('{"run": "torn')
        folder.ok("note", entries=[entry, entry])
        assert [e["event"] for e in folder.ok("history")["entries"]] == ["deploy"] * 3


class TestGuard:
    def test_the_same_run_arms_it_for_another_release_and_keeps_the_way_back(self, folder: Folder) -> None:
        folder.found()
        for release in ("1", "2"):
            folder.ok("stage", manifest=manifest(release), unit=f"{NEW}# {release}\n", base=None, files=[])
            folder.ok("arm", run="r1", by="ann", release=release, previous="0", lease_s=60)
            folder.ok("install", run="r1", release=release)
            folder.ok("restart", run="r1")
        folder.ok("revert", run="r1", by="ann", why="enough")
        assert (folder.unit.read_text(), folder.running) == (OLD, OLD)

    def test_it_is_for_one_release_alone(self, folder: Folder) -> None:
        folder.found()
        folder.ok("stage", manifest=manifest("2"), unit=NEW, base=None, files=[])
        folder.ok("arm", run="r1", by="ann", release="1", previous="0", lease_s=60)
        assert "armed for release 1, expected 2" in folder.error("install", run="r1", release="2")["message"]
        assert (
            "armed for release 1, expected 2"
            in folder.error("conclude", run="r1", by="ann", event="confirmed", release="2")["message"]
        )

    def test_repeating_the_end_of_a_run_changes_nothing(self, folder: Folder) -> None:
        folder.found()
        folder.ok("stage", manifest=manifest("1"), unit=NEW, base=None, files=[])
        folder.ok("arm", run="r1", by="ann", release="1", previous="0", lease_s=60)
        for _ in range(2):
            folder.ok("conclude", run="r1", by="ann", event="confirmed", release="1")
        assert folder.events() == [("ann", "armed", "1"), ("ann", "confirmed", "1")]
        assert (
            "has ended this run: confirmed"
            in folder.error("conclude", run="r1", by="ann", event="reverted", release="0")["message"]
        )


@pytest.mark.parametrize("name", ["a b", "x;reboot", "$(id)", "../up", "", "-x", "a\nb", None])
def test_a_service_name_that_a_shell_could_misread_goes_nowhere(folder: Folder, name: object) -> None:
    reply = answer({"verb": "lock", "service": name, **LOCK})
    assert (reply["error"]["kind"], reply["error"]["what"]) == ("usage", "service")
    assert list(folder.unit.parent.iterdir()) == []
