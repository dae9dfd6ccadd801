"""What must hold before anything on a node is touched."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from ddtree_ops.config.unit import parse_unit, split_words
from ddtree_ops.engine.words import flag_value
from ddtree_ops.model.errors import OpsError, Refused, UsageError
from ddtree_ops.model.facts import DdtreeFlags, NodeFacts, Sources
from ddtree_ops.model.profile import Profile
from ddtree_ops.patching.proof.memory import graph_buffers

DISK_MIB = 256  # a release tree is about 34 MB where hard links fail, plus head room
SKEW_S = 30.0
MIB = 1 << 20
STATIC_FRACTION = 0.88  # SGLang's default for weights and KV lies between 0.8 and 0.9, by GPU
SECRET_FLAGS = ("--api-key", "--admin-api-key", "--ssl-keyfile-password")
GRAPH_BUFFERS = "KV indices, mask and logits"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """What the model's config.json says, as far as budgets depend on it."""

    vocab: int | None = None
    context: int | None = None
    heads: int | None = None  # of queries
    value_dim: int | None = None  # of one head as the KV cache holds it


@dataclass(frozen=True, slots=True, kw_only=True)
class Intent:
    """The profile to be checked, and what the operator and the patch sets bring along."""

    profile: Profile
    provides: frozenset[str] = field(default_factory=frozenset)  # of the chosen patch sets
    accept_modified: bool = False
    shape: ModelShape = ModelShape()


def preflight(facts: NodeFacts, intent: Intent) -> None:
    """Raises the first objection, as Refused or UsageError; returns when there is none."""
    for objection in objections(facts, intent):
        raise objection.on(facts.node)


def objections(facts: NodeFacts, intent: Intent) -> Iterator[OpsError]:
    """Every reason not to touch this node, most basic first."""
    yield from _rights(facts)
    yield from _install(facts, intent)
    yield from _engine(facts, intent.profile)
    yield from _speculation(facts, intent)
    yield from _memory(facts, intent)


def warnings(facts: NodeFacts) -> tuple[str, ...]:
    """What an operator should know, and what stops nothing."""
    lines = []
    if abs(facts.clock_skew_s) > SKEW_S:
        lines.append(
            f"clock: the node's clock is {facts.clock_skew_s:+.0f} s off yours; "
            "leases run on its own monotonic clock, journal times are the node's"
        )
    if _written_out(facts.unit.text or ""):
        lines.append(
            "unit: it holds a secret in its text, expected ${NAME} there and NAME in an EnvironmentFile="
        )
    if facts.unit.drop_ins:
        lines.append(f"unit: drop-ins apply on top of the rendered unit: {', '.join(facts.unit.drop_ins)}")
    if not facts.gpus:
        lines.append(f"gpu: {facts.gpu_note or 'none found'}")
    return tuple(lines)


def _written_out(unit: str) -> bool:
    """Whether a unit's text holds a secret itself, not the name of a variable that does."""
    words = split_words(parse_unit(unit).value("Service", "ExecStart") or "")
    values = (flag_value(words, flag) for flag in SECRET_FLAGS)
    return any(value and not value.startswith("$") for value in values)


def _rights(facts: NodeFacts) -> Iterator[OpsError]:
    if not facts.root:
        yield Refused(
            "sudo",
            f"got user {facts.user} without root rights, expected root or passwordless sudo",
            hint=f"on the node: echo '{facts.user} ALL=(root) NOPASSWD: ALL' > /etc/sudoers.d/ddtree-ops",
        )
    if facts.systemd is None:
        yield Refused("systemd", "got none, expected systemd as PID 1", hint="ddtree-ops probe --host HOST")
    if facts.disk_free_mib < DISK_MIB:
        yield Refused(
            f"disk of {facts.state_dir}",
            f"got {facts.disk_free_mib} MiB free, expected at least {DISK_MIB}",
            hint=f"df -h {facts.state_dir}; old releases lie in {facts.state_dir}/<service>/releases",
        )
    if facts.guard is not None:
        yield Refused(
            "guard",
            f"got run {facts.guard.run} waiting to be confirmed, expected none",
            hint=f"wait {facts.guard.lease_left_s:.0f} s for the node to revert by itself, "
            "or: ddtree-ops status --host HOST",
        )


def _install(facts: NodeFacts, intent: Intent) -> Iterator[OpsError]:
    profile, sglang = intent.profile, facts.sglang
    if facts.venv_python is None:
        yield Refused(
            "venv",
            f"got no Python at {profile.venv}/bin/python, expected a venv",
            hint="set `venv` in the profile",
        )
    elif sglang.sources is Sources.MISSING:
        yield Refused(
            "sglang",
            f"got no sglang in {profile.venv}, expected an installed one",
            hint=f"on the node: {profile.venv}/bin/pip install sglang==0.5.11",
        )
    elif sglang.sources is Sources.MODIFIED and not intent.accept_modified:
        names = ", ".join(file.path for file in sglang.modified[:5])
        yield Refused(
            "sources",
            f"got {len(sglang.modified)} modified file(s) ({names}), expected the wheel's own",
            hint="ddtree-ops patch check --host HOST shows them; --accept-modified goes on and records them",
        )
    elif sglang.sources is Sources.UNVERIFIED and not intent.accept_modified:
        yield Refused(
            "sources",
            "got an install without RECORD hashes (editable or a source tree), expected a wheel's",
            hint="--accept-modified goes on and records that",
        )


def _engine(facts: NodeFacts, profile: Profile) -> Iterator[OpsError]:
    for what, path in (("model", profile.model), ("drafter", profile.drafter)):
        if path is not None and facts.exists(path) is False:
            yield Refused(
                what, f"got no {path} on the node, expected a folder", hint=f"set `{what}` in the profile"
            )
    for listener in facts.listeners:
        if listener.port == profile.port and listener.unit != profile.unit:
            owner = listener.unit or listener.process or "another process"
            yield Refused(
                f"port {profile.port}",
                f"got {owner} (pid {listener.pid}) listening, expected it free or held by {profile.unit}",
                hint="ss -ltnp on the node, or another `port` in the profile",
            )
    simulated = dict(profile.environment).get("SGLANG_SIMULATE_ACC_LEN")
    if simulated is not None:
        yield Refused(
            "environment",
            f"got SGLANG_SIMULATE_ACC_LEN={simulated}, expected it unset: it fakes acceptance",
            hint="remove it from the profile",
        )


def _speculation(facts: NodeFacts, intent: Intent) -> Iterator[OpsError]:
    profile = intent.profile
    if profile.budget is None:
        if profile.topk is not None:
            yield UsageError("topk", f"got {profile.topk} without a budget, expected --budget as well")
        return
    if profile.budget < 1:
        yield UsageError("budget", f"got {profile.budget}, expected at least 1")
    if profile.topk is not None and profile.topk < 1:
        yield UsageError("topk", f"got {profile.topk}, expected at least 1")
    if profile.drafter is None:
        yield Refused(
            "drafter", "got none, expected a DFlash drafter: a budget needs one", hint="set `drafter`"
        )
    if facts.sglang.ddtree is DdtreeFlags.NONE and "ddtree-flags" not in intent.provides:
        yield Refused(
            "ddtree",
            f"got SGLang {facts.sglang.version}, which takes no draft-tree budget, expected one that does",
            hint="--patches ddtree-engine brings DDTree to SGLang 0.5.11",
        )
    vocab = intent.shape.vocab
    if vocab is not None and (profile.topk or 0) > vocab:
        yield UsageError("topk", f"got {profile.topk}, expected at most the model's vocabulary of {vocab}")


def _memory(facts: NodeFacts, intent: Intent) -> Iterator[OpsError]:
    need = graph_memory_mib(intent.profile, intent.shape)
    if need is None or not facts.gpus:
        return
    smallest = min(facts.gpus, key=lambda gpu: gpu.memory_total_mib)
    room = smallest.memory_total_mib * (1 - _number(intent.profile, "--mem-fraction-static", STATIC_FRACTION))
    if need > room:
        yield Refused(
            "budget",
            f"got {intent.profile.budget}, whose graphs need {need:,.0f} MiB for {GRAPH_BUFFERS}, "
            f"expected at most the {room:,.0f} MiB that GPU {smallest.index} leaves beside weights and KV",
            hint="a smaller --budget, graph_max_batch or --mem-fraction-static",
        )


def graph_memory_mib(profile: Profile, shape: ModelShape) -> float | None:
    """MiB of a verify graph's static buffers on each GPU; None when vocabulary or context is unknown.

    What SGLang's Triton backend allocates (see `graph_buffers`) and the float32 logits of each token,
    captured at the largest batch. Partial attention sums are left out where heads are unknown.
    """
    width, batch = profile.verify_width, profile.graph_max_batch
    if (
        width is None
        or batch is None
        or not profile.cuda_graph
        or shape.vocab is None
        or shape.context is None
    ):
        return None
    attention = graph_buffers(
        batch=batch,
        width=width,
        context=int(_number(profile, "--context-length", shape.context)),
        query_heads=-(-(shape.heads or 0) // profile.tp),
        value_dim=shape.value_dim or 0,
    )
    return (attention.total + 4 * batch * width * shape.vocab / profile.tp) / MIB


def _number(profile: Profile, flag: str, otherwise: float) -> float:
    """What the profile hands on with a flag; what is no number is SGLang's to refuse."""
    try:
        return float(flag_value(profile.extra_flags, flag) or otherwise)
    except ValueError:
        return otherwise
