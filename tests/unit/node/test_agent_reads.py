"""The agent's readings of the world: systemctl, the journal, /proc and installed packages."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import socket
from pathlib import Path

import pytest
from pydantic import TypeAdapter

from ddtree_ops.model.facts import Sglang, Unit
from ddtree_ops.node.agent.ports import listeners_of, parse_listeners
from ddtree_ops.node.agent.sglang import ddtree_kind, flags_in, sglang_facts
from ddtree_ops.node.agent.systemd import parse_journal, parse_shown
from ddtree_ops.node.agent.units import runs_engine, unit_facts
from ddtree_ops.node.agent.words import argv_shown

CASES = Path(__file__).parents[2] / "cases"


def test_systemctls_properties_become_a_unit() -> None:
    shown = {unit["Id"]: unit for unit in parse_shown((CASES / "systemctl/show.txt").read_text())}
    shown["sglang-ddtree.service"]["MainPID"] = "0"  # that process is not on this machine
    unit = TypeAdapter(Unit).validate_python(
        unit_facts("sglang-ddtree.service", shown["sglang-ddtree.service"])
    )
    assert (unit.active, unit.sub, unit.enabled, unit.running) == ("active", "running", True, True)
    assert unit.invocation == "d988898ae0784565800e1ab2f9d00563"
    assert unit.path == "/etc/systemd/system/sglang-ddtree.service"
    assert unit.exec_start[:3] == ("/opt/sglang/bin/python", "-m", "reference_engine.launch_server")
    absent = TypeAdapter(Unit).validate_python(unit_facts("none.service", shown["none.service"]))
    assert (absent.path, absent.active, absent.exec_start, absent.invocation) == (None, "inactive", (), "")


@pytest.mark.parametrize(
    ("state", "job", "ended"),
    [
        ("active", "", False),
        ("activating", "", False),
        ("failed", "", True),
        ("inactive", "", True),
        ("deactivating", "71", False),
        ("failed", "71", False),
        ("inactive", "71", False),
    ],
)
def test_a_unit_has_ended_when_nothing_runs_and_no_job_is_queued(state: str, job: str, ended: bool) -> None:
    shown = parse_shown(f"Id=a.service\nActiveState={state}\n" + (f"Job={job}\n" if job else ""))
    assert unit_facts("a.service", shown[0])["ended"] is ended


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("/v/bin/python -m sglang.launch_server --port 1", True),
        ("/v/bin/sglang serve", True),
        ("/v/bin/python -m mine.serve", True),
        ("/usr/bin/python3 /var/lib/ddtree-ops/sglang-k26/agent.py guard sglang-k26", False),
        ("/usr/bin/tail -f /var/log/sglang.log", False),
    ],
)
def test_a_service_runs_an_engine_when_its_command_starts_one(command: str, engine: bool) -> None:
    assert runs_engine(command.split(), "mine.serve") is engine


def test_argv_is_cut_out_of_what_systemctl_shows() -> None:
    shown = '{ path=/bin/a ; argv[]=/bin/a --text "b c" ; ignore_errors=no ; pid=1 }'
    assert argv_shown(shown) == ["/bin/a", "--text", "b c"]
    assert argv_shown("{ path=/bin/a ; argv[]=/bin/a it's ; x }") == ["/bin/a", "it's"]
    assert argv_shown("") == []


def test_journal_lines_keep_time_invocation_and_bytes_that_are_no_text() -> None:
    lines, cursor = parse_journal((CASES / "journal/ssh.jsonl").read_text() + "no json\n")
    assert [line["message"] for line in lines][1:] == [
        "Accepted publickey for root from 10.77.0.1 port 57966 ssh2: ED25519 "
        + lines[1]["message"].split()[-1],
        "pam_unix(sshd:session): session opened for user root(uid=0) by (uid=0)",
        "caf\ufffd",
    ]
    assert lines[1]["invocation"] == "66cdd0ca0afe47b3b947e2c42514b760"
    assert lines[0]["time"] == 1795995772.567208
    assert cursor.startswith("s=31f55a604d3649948d30c1418bd2c536;i=4e;")


def test_proc_net_tcp_gives_the_listening_ports() -> None:
    assert parse_listeners((CASES / "proc/net-tcp.txt").read_text(), socket.AF_INET) == [
        ("0.0.0.0", 22, "564410")
    ]
    assert parse_listeners((CASES / "proc/net-tcp6.txt").read_text(), socket.AF_INET6) == [
        ("::", 22, "564421")
    ]


def test_a_listener_comes_with_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        (found,) = listeners_of(port, {os.getpid(): "tests.service"})
    assert (found["address"], found["pid"], found["unit"]) == ("127.0.0.1", os.getpid(), "tests.service")


SERVER_ARGS = """
class Other:
    def add(parser):
        parser.add_argument("--not-this")
class ServerArgs:
    model_path: str
    tp_size: int = 1
    @staticmethod
    def add_cli_args(parser):
        parser.add_argument("--model-path", "--model", help="--not a flag, with a space")
        parser.add_argument(
            "--tensor-parallel-size", "--tp-size", type=int)
"""


def test_flags_are_those_that_server_args_adds() -> None:
    assert flags_in(SERVER_ARGS) == {"--model-path", "--model", "--tensor-parallel-size", "--tp-size"}


def test_flags_of_annotated_fields_are_found_too() -> None:
    fields = """
class ServerArgs:
    port: A[int, "The port"] = 1
    tp_size: A[Optional[int], Arg(help="--no flag", cli_name="--tensor-parallel-size", aliases=["--tp-size"])] = 1
    model_path: Annotated[str, Arg(help="x", aliases=["--model"])]
    inner: A[int, Arg(help="x", no_cli=True)] = 0
    plain: int = 0
"""
    assert flags_in(fields) == {"--port", "--tensor-parallel-size", "--tp-size", "--model-path", "--model"}


def test_a_server_args_without_a_parser_has_a_flag_for_each_field() -> None:
    assert flags_in("class ServerArgs:\n    model_path: str\n    ddtree_budget: int = 0\n") == {
        "--model-path",
        "--ddtree-budget",
    }


@pytest.mark.parametrize(
    ("flags", "source", "kind"),
    [
        ({"--speculative-ddtree-budget"}, "", "ours"),
        ({"--port"}, 'choices=["EAGLE", "DDTREE"]', "algorithm"),
        ({"--enable-ddtree"}, "", "other"),
        ({"--port"}, "", "none"),
    ],
)
def test_ddtree_support_is_told_by_the_nodes_own_flags(flags: set[str], source: str, kind: str) -> None:
    assert ddtree_kind(flags, source) == kind


class TestInstalled:
    @pytest.fixture
    def venv(self, tmp_path: Path) -> Path:
        site = tmp_path / "lib/python3.11/site-packages"
        files = {
            "sglang/__init__.py": "x = 1\n",
            "sglang/srt/server_args.py": SERVER_ARGS,
            "sglang/srt/a.py": "a\n",
        }
        rows = []
        for name, text in files.items():
            (site / name).parent.mkdir(parents=True, exist_ok=True)
            (site / name).write_text(text)
            digest = base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
            rows.append(f"{name},sha256={digest},{len(text)}")
        info = site / "sglang-0.5.11.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: sglang\nVersion: 0.5.11+cu129\n\nVersion: 9\n"
        )
        (info / "RECORD").write_text("\n".join([*rows, "sglang-0.5.11.dist-info/RECORD,,"]))
        for name in ("torch-2.9.1+cu129", "triton-3.5.1", "sgl_kernel-0.3.20"):
            (site / f"{name}.dist-info").mkdir()
        return tmp_path

    def facts(self, venv: Path, *read: str) -> Sglang:
        return TypeAdapter(Sglang).validate_python(
            sglang_facts(str(venv), "sglang.launch_server", list(read))
        )

    def test_an_untouched_install_is_stock(self, venv: Path) -> None:
        found = self.facts(venv, "sglang/srt/a.py", "sglang/none.py", "sglang/../../x")
        assert (found.version, found.sources, found.modified) == ("0.5.11+cu129", "stock", ())
        assert (found.torch, found.triton, found.kernel) == ("2.9.1+cu129", "3.5.1", "0.3.20")
        assert [(file.path, file.text) for file in found.files] == [
            ("sglang/srt/a.py", "a\n"),
            ("sglang/none.py", None),
        ]
        assert "--tp-size" in found.known_flags

    def test_changed_added_and_missing_files_are_named_with_their_text(self, venv: Path) -> None:
        site = venv / "lib/python3.11/site-packages"
        (site / "sglang/srt/a.py").write_text("b\n")
        (site / "sglang/new.py").write_text("n\n")
        (site / "sglang/__init__.py").unlink()
        (site / "sglang/srt/__pycache__").mkdir()
        (site / "sglang/srt/__pycache__/a.py").write_text("")
        found = self.facts(venv)
        assert found.sources == "modified"
        assert [(file.path, file.text) for file in found.modified] == [
            ("sglang/__init__.py", None),
            ("sglang/new.py", "n\n"),
            ("sglang/srt/a.py", "b\n"),
        ]

    def test_without_a_record_nothing_is_claimed(self, venv: Path) -> None:
        (venv / "lib/python3.11/site-packages/sglang-0.5.11.dist-info/RECORD").unlink()
        assert self.facts(venv).sources == "unverified"

    def test_an_editable_install_is_followed_to_its_sources(self, venv: Path, tmp_path: Path) -> None:
        checkout = tmp_path / "checkout"
        (checkout / "python/sglang").mkdir(parents=True)
        info = venv / "lib/python3.11/site-packages/sglang-0.5.11.dist-info"
        (info / "direct_url.json").write_text(
            json.dumps({"url": f"file://{checkout}", "dir_info": {"editable": True}})
        )
        found = self.facts(venv)
        assert (found.editable, found.sources, found.package) == (True, "unverified", f"{checkout}/python")

    def test_a_venv_without_sglang_says_missing(self, tmp_path: Path) -> None:
        found = self.facts(tmp_path / "none")
        assert (found.version, found.package, found.sources, found.ddtree) == (None, None, "missing", "none")

    def test_the_launchers_own_server_args_come_first(self, venv: Path) -> None:
        package = venv / "lib/python3.11/site-packages/mine"
        package.mkdir()
        (package / "server_args.py").write_text("class ServerArgs:\n    speculative_ddtree_budget: int\n")
        found = TypeAdapter(Sglang).validate_python(sglang_facts(str(venv), "mine.launch_server", []))
        assert (found.known_flags, found.ddtree) == ({"--speculative-ddtree-budget"}, "ours")
