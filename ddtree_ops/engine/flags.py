"""A profile as an engine's command line, and the way back.

SGLang renames its flags between releases, so every flag is written with the spelling that the node's own
ServerArgs knows, and what it cannot express is refused before anything is touched.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import PurePosixPath

from ddtree_ops.model.errors import Refused, UsageError
from ddtree_ops.model.facts import DdtreeFlags
from ddtree_ops.model.profile import Profile

TOPK_ENVIRONMENT = "SGLANG_DDTREE_MAX_TOPK"  # SGLang pull request 29907
ALGORITHMS = frozenset(
    {"DFLASH", "DDTREE"}
)  # implied by drafter and budget, so a profile has no field for them

# Every spelling of a flag that a profile's field stands for; the first one that the node knows is written.
SPELLINGS: Mapping[str, tuple[str, ...]] = {
    "model": ("--model-path", "--model"),
    "host": ("--host",),
    "port": ("--port",),
    "tp": ("--tp-size", "--tensor-parallel-size"),
    "algorithm": ("--speculative-algorithm", "--speculative-algo"),
    "drafter": ("--speculative-draft-model-path", "--speculative-draft-model"),
    "budget": ("--speculative-ddtree-budget",),
    "topk": ("--speculative-ddtree-topk-cap",),
    # 0.5.20 dropped the short name; 0.5.14 to 0.5.18 knew both and warned about it.
    "graph_max_batch": ("--cuda-graph-max-bs-decode", "--cuda-graph-max-bs"),
    "no_cuda_graph": ("--disable-cuda-graph",),
}
_FIELD = {spelling: field for field, spellings in SPELLINGS.items() for spelling in spellings}
_FIELD["--tp"] = "tp"  # what people write; argparse completes it
_SPECULATION = frozenset({"algorithm", "drafter", "budget", "topk"})
_DEFAULT_PORT = 30000  # ServerArgs.port


def engine_argv(profile: Profile, known_flags: Iterable[str], ddtree: DdtreeFlags) -> tuple[str, ...]:
    """The words after `python -m <launcher>` that start this profile's engine.

    `known_flags` are the flags of the ServerArgs that will run, patches included; `ddtree` says by which
    of them it takes a budget. UsageError: the profile contradicts itself. Refused: this SGLang has no
    flag for something that the profile asks for.
    """
    _check_tree(profile)
    write = _Writer(frozenset(known_flags))
    words = [
        *write("model", profile.model),
        *write("host", profile.host),
        *write("port", str(profile.port)),
        *(write("tp", str(profile.tp)) if profile.tp != 1 else ()),
        *_speculation(profile, write, ddtree),
        *_graphs(profile, write),
    ]
    return (*words, *profile.extra_flags)


def engine_environment(profile: Profile, ddtree: DdtreeFlags) -> tuple[tuple[str, str], ...]:
    """The profile's environment, with the variable by which algorithm DDTREE takes its top-k cap."""
    own = tuple((name, value) for name, value in profile.environment if name != TOPK_ENVIRONMENT)
    if ddtree is DdtreeFlags.ALGORITHM and profile.budget is not None and profile.topk is not None:
        return (*own, (TOPK_ENVIRONMENT, str(profile.topk)))
    return profile.environment


def profile_from_argv(
    argv: Sequence[str],
    environment: Sequence[tuple[str, str]] = (),
    *,
    name: str,
    service: str,
) -> Profile:
    """The profile that a hand-written ExecStart stands for; unknown words survive in order.

    Refused when it is not `<venv>/bin/python -m <launcher> …`, names no model, or gives a flag that we
    manage a value that we cannot read. A repeated flag counts as its last, as argparse has it.
    """
    venv, launcher, words = _command(argv)
    flags = _flags(words)
    if _foreign_speculation(flags):
        flags = [replace(flag, field=None) if flag.field in _SPECULATION else flag for flag in flags]
    value = {flag.field: flag.value for flag in flags if flag.field is not None}
    if "model" not in value:
        raise Refused("ExecStart", "got no --model-path, expected one", hint=_BY_HAND)
    count = {field: _count(field, value.get(field)) for field in _COUNTS}
    profile = Profile(
        name=name,
        service=service,
        venv=venv,
        launcher=launcher,
        model=value["model"],
        port=count["port"] or _DEFAULT_PORT,
        host=value.get("host", "127.0.0.1"),
        drafter=value.get("drafter"),
        tp=count["tp"] or 1,
        budget=count["budget"],
        topk=count["topk"],
        cuda_graph="no_cuda_graph" not in value,
        graph_max_batch=count["graph_max_batch"],
        extra_flags=tuple(word for flag in flags if flag.field is None for word in flag.words),
        environment=tuple(environment),
    )
    return _with_environment_topk(profile, value.get("algorithm"))


_BY_HAND = "write its profile by hand instead; the sample inventory shows the fields"
_COUNTS = ("port", "tp", "budget", "topk", "graph_max_batch")


@dataclass(frozen=True, slots=True)
class _Flag:
    """One flag, or one word that is none, of a hand-written command line."""

    words: tuple[str, ...]
    field: str | None = None
    value: str = ""


@dataclass(frozen=True, slots=True)
class _Writer:
    """Writes a field's flag as the node spells it."""

    known: frozenset[str]

    def __call__(self, field: str, *values: str) -> tuple[str, ...]:
        for spelling in SPELLINGS[field]:
            if spelling in self.known:
                return (spelling, *values)
        wanted = " or ".join(SPELLINGS[field])
        raise Refused(
            "flags",
            f"this SGLang has no {wanted}, which the profile's {field} needs",
            hint="ddtree-ops probe shows the node's SGLang; ddtree-ops patch list shows what can be added",
        )


def _check_tree(profile: Profile) -> None:
    if profile.budget is not None and profile.budget < 1:
        raise UsageError(
            "budget", f"got {profile.budget}, expected 1 or more", hint="leave it out for no tree"
        )
    if profile.topk is not None and profile.topk < 1:
        raise UsageError("topk", f"got {profile.topk}, expected 1 or more", hint="leave it out for no cap")
    if profile.budget is not None and profile.drafter is None:
        raise UsageError("budget", "got a budget without a drafter", hint="name the drafter in the profile")


def _speculation(profile: Profile, write: _Writer, ddtree: DdtreeFlags) -> tuple[str, ...]:
    if profile.drafter is None:
        return ()
    if profile.budget is None:
        return (*write("algorithm", "DFLASH"), *write("drafter", profile.drafter))
    if ddtree not in (DdtreeFlags.OURS, DdtreeFlags.ALGORITHM):
        raise Refused(
            "flags",
            f"got budget {profile.budget}, but this SGLang takes no draft-tree budget that we know",
            hint="ddtree-ops patch list shows the patch sets that provide one; name it with --patches",
        )
    ours = ddtree is DdtreeFlags.OURS
    words = (
        *write("algorithm", "DFLASH" if ours else "DDTREE"),
        *write("drafter", profile.drafter),
        *write("budget", str(profile.budget)),
    )
    if ours and profile.topk is not None:
        return (*words, *write("topk", str(profile.topk)))
    return words


def _graphs(profile: Profile, write: _Writer) -> tuple[str, ...]:
    if not profile.cuda_graph:
        return write("no_cuda_graph")
    if profile.graph_max_batch is not None:
        return write("graph_max_batch", str(profile.graph_max_batch))
    return ()


def _command(argv: Sequence[str]) -> tuple[str, str, Sequence[str]]:
    """The venv, the launcher and the words after it."""
    python = PurePosixPath(argv[0] if argv else "")
    if not python.name.startswith("python") or python.parent.name != "bin":
        raise Refused("ExecStart", f"got {python} first, expected <venv>/bin/python", hint=_BY_HAND)
    words = list(argv[1:])
    if words[:1] == ["-u"]:  # unbuffered: journals want it, so units get it by PYTHONUNBUFFERED
        words.pop(0)
    if len(words) < 2 or words[0] != "-m":
        got = " ".join(words[:2]) or "nothing"
        raise Refused("ExecStart", f"got {got} after Python, expected -m <module>", hint=_BY_HAND)
    return str(python.parent.parent), words[1], words[2:]


def _flags(words: Sequence[str]) -> list[_Flag]:
    """The words in order, each of our flags together with its value."""
    flags = []
    rest = list(words)
    while rest:
        word = rest.pop(0)
        spelling, equals, value = word.partition("=")
        field = _FIELD.get(spelling)
        if field is None or field == "no_cuda_graph":
            flags.append(_Flag((word,), field))
        elif equals:
            flags.append(_Flag((word,), field, value))
        elif rest:
            flags.append(_Flag((word, rest[0]), field, rest.pop(0)))
        else:
            raise Refused("ExecStart", f"got {word} without a value", hint=_BY_HAND)
    return flags


def _foreign_speculation(flags: Sequence[_Flag]) -> bool:
    """Whether these flags speculate, or half-speculate, in a way that profiles have no fields for."""
    value = {flag.field: flag.value for flag in flags if flag.field in _SPECULATION}
    ours = value.get("algorithm", "").upper() in ALGORITHMS and "drafter" in value
    return bool(value) and not ours


def _count(field: str, text: str | None) -> int | None:
    if text is None:
        return None
    if not text.isdecimal():
        raise Refused("ExecStart", f"got {text} for {SPELLINGS[field][0]}, expected a number", hint=_BY_HAND)
    return int(text)


def _with_environment_topk(profile: Profile, algorithm: str | None) -> Profile:
    """Moves the top-k cap of algorithm DDTREE from the environment into its field."""
    text = dict(profile.environment).get(TOPK_ENVIRONMENT, "")
    if algorithm is None or algorithm.upper() != "DDTREE" or not text.isdecimal():
        return profile
    rest = tuple(pair for pair in profile.environment if pair[0] != TOPK_ENVIRONMENT)
    return replace(profile, topk=int(text), environment=rest)
