"""Real CUDA graphs: one layer captured once, replayed while trees, prefixes and inputs change."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from . import attention, stage
from .attention import Engine, Seen, Tensors
from .cases import Case

WARM = 3  # passes before a capture: triton compiles in the first


@dataclass
class Captured:
    """A graph and the tensors that it reads and writes; `case` fixes its shapes."""

    engine: Engine
    case: Case
    backend: Any
    tensors: Tensors
    graph: torch.cuda.CUDAGraph
    output: torch.Tensor
    given: tuple[Any, ...]

    def replay(self, case: Case, tensors: Tensors) -> Seen:
        """Another pass of the same shapes: metadata as a runner prepares it, inputs copied, the graph run."""
        for name in ("query", "key", "value", "pool_key", "pool_value", "slots"):
            getattr(self.tensors, name).copy_(getattr(tensors, name))
        batch = stage.batch_of(self.engine, case, self.tensors, tensors.mask, tensors.lengths)
        stage.metadata(self.backend, stage.pad(batch, case), capturing=False)
        self.graph.replay()
        torch.cuda.synchronize()
        return attention.seen(case, self.output, self.given, tensors.mask.numel(), self.held)

    @property
    def held(self) -> int:
        """Rows that the graph computes."""
        return (self.case.batch + self.case.padded) * self.engine.graph_width


def capture(engine: Engine, case: Case, tensors: Tensors) -> Captured:
    """Captures `forward_extend` with the metadata that a runner captures with."""
    engine = engine.for_graphs(case.width)
    backend = stage.backend_of(engine, case, tensors)
    held = case.batch + case.padded
    backend.init_cuda_graph_state(held, held * engine.graph_width)
    dummy = stage.dummy_of(engine, tensors, held)
    stage.metadata(backend, dummy, capturing=True)
    given: dict[str, Any] = {}
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM):
            attention.poisoned_pass(engine, backend, case, tensors, dummy, given)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = attention.poisoned_pass(engine, backend, case, tensors, dummy, given)
    return Captured(engine, case, backend, tensors, graph, output, given["given"])
