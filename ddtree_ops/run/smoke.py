"""The smoke gate on one engine: prompts through the tunnel, verdicts from the checks."""

from __future__ import annotations

from collections.abc import Callable

from ddtree_ops.engine.http import Sampling
from ddtree_ops.model.profile import Profile
from ddtree_ops.model.release import Gate
from ddtree_ops.run.context import NodeRun


def verdict(
    run: NodeRun,
    profile: Profile,
    timeout_s: float,
    *,
    brief: bool,
    show: Callable[[Gate], None] | None = None,
) -> Gate:
    with run.engine(profile) as client:
        ids = client.tokenize("Write a short poem about the ocean.")
        answer = client.generate(ids, Sampling(max_tokens=32))
        prompts = [(*ids, *answer.output_ids[:i]) for i in range(len(answer.output_ids))]
        client.flush_cache()
        again = client.generate_batch(prompts, Sampling(max_tokens=1))
    wrong = [i for i, (a, b) in enumerate(zip(answer.output_ids, again)) if b.output_ids[0] != a]
    gate = Gate(
        name="rescore", passed=not wrong, evidence=f"{answer.text!r} wrong at {wrong[:3]}", prompt="poem"
    )
    if show:
        show(gate)
    return gate
