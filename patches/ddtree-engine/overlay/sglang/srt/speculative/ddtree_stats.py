"""What a DDTree server tells about itself: one start-up line, a summary a request, gauges and counters.

A summary travels to `meta_info["ddtree"]` by SGLang's own `customized_info`, so every request carries one
from the start, also those that end in prefill.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional, Sequence

from sglang.srt.speculative.ddtree_flags import TreeShape, enabled

META_KEY = "ddtree"
GAUGE_STEPS = 16  # steps between two updates of the gauges


@dataclass(frozen=True)
class StepTimes:
    """GPU milliseconds of one step: the drafter's pass, trees and mask, the target's verify pass."""

    draft_ms: float
    build_ms: float
    verify_ms: float


class RequestSummary:
    """One request's running totals; any slice of it is its summary so far, as `customized_info` asks for
    slices.
    """

    __slots__ = ("accepted", "build_ms", "draft_ms", "nodes", "steps", "verify_ms")

    def __init__(self) -> None:
        self.steps = 0
        self.accepted = 0
        self.nodes = 0
        self.draft_ms = 0.0
        self.build_ms = 0.0
        self.verify_ms = 0.0

    def add(self, accepted: int, nodes: int, times: StepTimes) -> None:
        self.steps += 1
        self.accepted += accepted
        self.nodes += nodes
        self.draft_ms += times.draft_ms
        self.build_ms += times.build_ms
        self.verify_ms += times.verify_ms

    def __getitem__(self, _: slice) -> dict[str, float]:
        steps = max(1, self.steps)
        return {
            "verify_steps": self.steps,
            "accepted_depth": round(self.accepted / steps, 4),
            "tree_nodes": round(self.nodes / steps, 2),
            "draft_ms": round(self.draft_ms / steps, 4),
            "build_ms": round(self.build_ms / steps, 4),
            "verify_ms": round(self.verify_ms / steps, 4),
        }


def request_info() -> Optional[dict[str, Any]]:
    """What a new request carries as `customized_info`: nothing on a server without a budget."""
    from sglang.srt.server_args import get_global_server_args

    try:
        server_args = get_global_server_args()
    except ValueError:  # requests made outside a server, by tools
        return None
    return {META_KEY: RequestSummary()} if enabled(server_args) else None


def record(reqs: Sequence[Any], accepted: Sequence[int], nodes: Sequence[int], times: StepTimes) -> None:
    """Adds one step to each request's summary; times are the whole batch's step."""
    for req, depth, size in zip(reqs, accepted, nodes, strict=True):
        summary = (req.customized_info or {}).get(META_KEY)
        if summary is not None:
            summary.add(int(depth), int(size), times)


def ready_line(shape: TreeShape, block_size: int, graphs: bool, graph_bs: Optional[int]) -> str:
    """The start-up line that says that DDTree runs, and with which sizes."""
    return (
        f"DDTree ready. budget={shape.budget}, topk_cap={shape.ranks}, verify_width={shape.width}, "
        f"depth={shape.depth}, block_size={block_size}, cuda_graph={graphs}, cuda_graph_max_bs={graph_bs}"
    )


class StepGauges:
    """Prometheus metrics of the tree; made only where SGLang's own metrics are on."""

    def __init__(self, shape: TreeShape, labels: dict[str, str]) -> None:
        from prometheus_client import Counter, Gauge

        names = list(labels)

        def gauge(name: str, text: str) -> Any:
            made = Gauge(f"sglang:ddtree_{name}", text, labelnames=names, multiprocess_mode="mostrecent")
            return made.labels(**labels)

        self._depth = gauge(
            "accepted_depth", "Tree tokens accepted a verify step, bonus token left out, recent mean."
        )
        self._nodes = gauge("tree_nodes", "Nodes in a request's tree, recent mean.")
        self._draft = gauge("draft_ms", "GPU time of the drafter's pass, recent mean.")
        self._build = gauge("build_ms", "GPU time from draft hidden states to tree and mask, recent mean.")
        self._verify = gauge("verify_ms", "GPU time of the target's verify pass, recent mean.")
        self._steps = Counter(
            "sglang:ddtree_verify_steps", "Verify steps, each request counted.", labelnames=names
        )
        self._steps = self._steps.labels(**labels)
        gauge("budget", "Tree nodes asked for.").set(shape.budget)
        gauge("topk_cap", "Candidates kept at each depth.").set(shape.ranks)
        self._recent = RequestSummary()
        self._requests = 0

    def add(self, accepted: Sequence[int], nodes: Sequence[int], times: StepTimes) -> None:
        recent, count = self._recent, len(accepted)
        recent.add(int(sum(accepted)), int(sum(nodes)), times)
        self._requests += count
        self._steps.inc(count)
        if recent.steps < GAUGE_STEPS:
            return
        self._depth.set(recent.accepted / max(1, self._requests))
        self._nodes.set(recent.nodes / max(1, self._requests))
        self._draft.set(recent.draft_ms / recent.steps)
        self._build.set(recent.build_ms / recent.steps)
        self._verify.set(recent.verify_ms / recent.steps)
        self._recent, self._requests = RequestSummary(), 0
