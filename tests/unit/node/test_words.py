"""Secrets on a command line are found on the node, and marked in all that it tells."""

import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.node.agent.words import SECRET_FLAGS, engine_key, secret_words, unit_words, without_secrets
from ddtree_ops.plan import preflight

ENGINE = "{{ path=/bin/e ; argv[]=/bin/e --port 1 --api-key {} --x $5 ; ignore_errors=no ; pid=0 }}"


@pytest.mark.parametrize(
    ("words", "shown", "secrets"),
    [
        (["e", "--api-key", "k1"], ["e", "--api-key", "***"], {"--api-key": "k1"}),
        (["e", "--admin-api-key=k2", "--p", "1"], ["e", "--admin-api-key=***", "--p", "1"], {"--admin-api-key": "k2"}),
        (["e", "--ssl-keyfile-password", "k3", "-k3-"], ["e", "--ssl-keyfile-password", "***", "-***-"], {"--ssl-keyfile-password": "k3"}),
        (["e", "--api-key"], ["e", "--api-key"], {}),
        (["e", "--api-key-file", "f"], ["e", "--api-key-file", "f"], {}),
    ],
)  # fmt: skip
def test_values_behind_secret_flags_are_marked(
    words: list[str], shown: list[str], secrets: dict[str, str]
) -> None:
    assert (without_secrets(words), secret_words(words)) == (shown, secrets)


def test_a_stopped_unit_s_key_comes_from_its_environment_file(tmp_path: Path) -> None:
    file = tmp_path / "of it.env"
    file.write_text('# KEY=no\n;\nOTHER=1\nKEY = "a b"\n')
    unit = {
        "MainPID": "0",
        "ExecStart": ENGINE.format("${KEY}"),
        "EnvironmentFiles": f"/nowhere.env (ignore_errors=yes)\n{file} (ignore_errors=no)",
    }
    assert engine_key(unit) == "a b"
    assert unit_words(unit)[-1] == "$5"


def test_a_running_unit_s_key_is_that_of_its_process() -> None:
    held = "import sys; print(flush=True); sys.stdin.read()"
    argv = [sys.executable, "-c", held, "--api-key", "k"]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert process.stdout is not None
        process.stdout.readline()  # by then its words are in /proc
        unit = {"MainPID": str(process.pid), "ExecStart": ENGINE.format("other")}
        assert engine_key(unit) == "k"
    finally:
        process.communicate()


def test_a_unit_without_a_key_has_none() -> None:
    assert engine_key({"ExecStart": "{ path=/bin/e ; argv[]=/bin/e --port 1 ; pid=0 }"}) == ""


def test_preflight_warns_of_the_same_flags() -> None:
    assert preflight.SECRET_FLAGS == SECRET_FLAGS
