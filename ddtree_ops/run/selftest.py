"""The attention proof on the node's own GPU and venv, with the staged release, before any restart."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from ddtree_ops.model.errors import Failed, Refused
from ddtree_ops.model.facts import Gpu, NodeFacts
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.patching.proof.bundle import script
from ddtree_ops.plan.preflight import GRAPH_BUFFERS, graph_memory_mib
from ddtree_ops.run.context import NodeRun
from ddtree_ops.run.models import drafter_block, model_shape

# the proof's tensors at budget 128 and batch 48 took 2,134 on an H200; torch's own context is beside them
NEED_MIB = 3072
BATCHES = (1, 3, 8)
TELLING = ("budget", "topk", "cuda_graph", "graph_max_batch", "patches", "sglang", "release")


def gate(run: NodeRun, timeout_s: float) -> Iterator[Gate]:
    """The deploy's gate: yields a verdict where there is a GPU with room, and a change that calls for one."""
    facts, goal = run.known(), run.aim()
    why = _why_not(facts, goal.release.profile, run.planned().changes)
    if why:
        run.world.screen.note(run.name, f"selftest: left out, {why}")
        return
    site = f"{facts.state_dir}/{run.node.service}/releases/{goal.id}/site"
    yield prove(run, goal.release.profile, site, timeout_s)


def need_room(facts: NodeFacts, *, beside: bool) -> None:
    """Raises Refused where no GPU has room for the proof, or each is held and `beside` was not said."""
    if not facts.gpus:
        raise Refused("selftest", f"got no GPU ({facts.gpu_note}), expected one", node=facts.node)
    roomy = _roomiest(facts)
    if roomy.processes and not beside:
        held = roomy.processes[0]
        raise Refused(
            "selftest",
            f"got {held.name} with {held.memory_mib:,} MiB of GPU {roomy.index}, expected a GPU that is free",
            hint=f"--beside runs it all the same where {NEED_MIB:,} MiB are free",
            node=facts.node,
        )
    if roomy.memory_free_mib < NEED_MIB:
        raise Refused(
            "selftest",
            f"got {roomy.memory_free_mib:,} MiB free on GPU {roomy.index}, expected {NEED_MIB:,}",
            node=facts.node,
        )


def prove(run: NodeRun, profile: Profile, site: str, timeout_s: float) -> Gate:
    """One proof under the node's venv, bf16: eager, and with graphs on a CUDA graph captured and replayed."""
    gpu = _roomiest(run.known())
    batches = sorted({*BATCHES, profile.graph_max_batch or max(BATCHES)})
    argv = (
        "--selftest", "--graphs" if profile.cuda_graph else "--no-graphs", "--compact",
        "--tree", site, "--device", "cuda", "--dtype", "bfloat16", "--budgets", str(profile.budget),
        "--batches", ",".join(map(str, batches)), "--block", str(drafter_block(run, profile.drafter)),
    )  # fmt: skip
    sizes = ", ".join(map(str, batches))
    run.world.screen.progress(run.name, f"budget {profile.budget}, batches {sizes} on GPU {gpu.index}")
    ran = run.link.run(
        ("env", f"CUDA_VISIBLE_DEVICES={gpu.index}", f"{profile.venv}/bin/python", "-"),
        stdin=script(argv).encode(),
        timeout_s=timeout_s,
    )
    document = _document(ran.stdout)
    if "cases" not in document:
        lines = ran.stderr.decode(errors="replace").strip().splitlines()
        last = document.get("error") or (lines or ["no message"])[-1]
        raise Failed(
            "selftest",
            f"got exit {ran.code} ({last}), expected a verdict",
            hint="the proof needs the venv's torch and triton; a playbook may leave `selftest` out",
        )
    return Gate(name="selftest", passed=bool(document["passed"]), evidence=_evidence(document, run, profile))


def _why_not(facts: NodeFacts, profile: Profile, changes: tuple[str, ...]) -> str:
    if not facts.gpus:
        return f"{facts.gpu_note or 'no GPU'}"
    if profile.budget is None:
        return "no tree is asked for"
    if not any(change.split(":")[0] in TELLING for change in changes):
        return "the plan changes nothing that it would prove"
    free = _roomiest(facts).memory_free_mib
    return f"{free:,} MiB are free beside the engine, it needs {NEED_MIB:,}" if free < NEED_MIB else ""


def _roomiest(facts: NodeFacts) -> Gpu:
    """A GPU that nobody holds where there is one, and of those the one with most memory free."""
    return max(facts.gpus, key=lambda gpu: (not gpu.processes, gpu.memory_free_mib))


def _document(output: bytes) -> dict[str, Any]:
    """What the program printed; an error of its own, or nothing when it was ended before."""
    try:
        document = json.loads(output)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}


def _evidence(document: dict[str, Any], run: NodeRun, profile: Profile) -> str:
    counts = (
        f"{document['cases']} trees, {document['rows']} rows, {document['wrong_rows']} wrong, "
        f"{document['unwritten_rows']} never written"
    )
    causes = "; ".join(cause["text"] for cause in document["causes"][:2])
    memory = graph_memory_mib(profile, model_shape(run.known()))
    graphs = f"; graphs will take {memory:,.0f} MiB for {GRAPH_BUFFERS}" if memory is not None else ""
    where = f" on {document['device']}" + (f" ({document['capability']})" if "capability" in document else "")
    return f"{counts}{f' ({causes})' if causes else ''}{where}{graphs}"
