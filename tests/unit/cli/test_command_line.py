"""The command line's own errors: one form, documented exit codes, and a README that tells the truth."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from ddtree_ops.cli.main import invoke, make_app

ROOT = Path(__file__).parents[3]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def commands() -> set[str]:
    """Every command's words, groups spelt out."""
    app = make_app([])
    names = {info.name or info.callback.__name__ for info in app.registered_commands if info.callback}
    for group in app.registered_groups:
        assert group.typer_instance is not None
        for info in group.typer_instance.registered_commands:
            assert info.callback is not None
            names.add(f"{group.name} {info.name or info.callback.__name__}")
    return names


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["deploy"], "Missing option '--host'"),
        (["deploy", "--host", "lab", "--budjet", "3"], "No such option: --budjet"),
        (["deploy", "--host", "lab", "--budget", "x"], "Invalid value for '--budget'"),
        (["nothing"], "No such command 'nothing'"),
        (["patch", "check", "--sglang", "0.5.11;x"], "got '0.5.11;x', expected a version"),
        (
            ["patch", "check", "--tree", "/nonexistent"],
            "got no /nonexistent, expected a wheel or a directory",
        ),
        (
            ["status", "--host", "a b", "--inventory", "docs/inventory.sample.yaml"],
            "expected an inventory name",
        ),
    ],
)
def test_a_wrong_command_line_ends_with_2_and_says_why(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(ROOT)
    assert invoke(words) == 2
    assert said in capsys.readouterr().err


def test_an_error_under_json_is_one_document_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke(["deploy", "--json"]) == 2
    shown = capsys.readouterr()
    assert (json.loads(shown.out)["exit_code"], shown.err) == (2, "")


def test_without_a_terminal_a_change_needs_yes() -> None:
    argv = (sys.executable, "-m", "ddtree_ops", "deploy", "--host", "nowhere")
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd=ROOT
    )
    assert (done.returncode, done.stderr.splitlines()[0]) == (
        2,
        "--yes: got no terminal to ask on, expected --yes",
    )


def test_every_command_of_the_readme_exists() -> None:
    shown = "\n".join(re.findall(r"```console\n(.*?)```", README, re.DOTALL))
    told = re.findall(r"^ddtree-ops +([a-z]+)(?: +([a-z]+))?", shown, re.MULTILINE)
    known = commands()
    assert told
    assert [pair for pair in told if pair[0] not in known and " ".join(pair) not in known] == []


@pytest.mark.parametrize("words", sorted(commands()))
def test_every_command_has_help(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert invoke([*words.split(), "--help"]) == 0
    assert "Usage: ddtree-ops" in capsys.readouterr().out
