"""An asynchronous load client: bytes stamped on arrival, read afterwards, tokens counted by the server."""

from ddtree_ops.measure.client.load import Closed, Load, LoadResult, Poisson, Progress, run_load
from ddtree_ops.measure.client.routes import Prompt, Route, Target
from ddtree_ops.measure.client.sample import Outcome, Sample

__all__ = [
    "Closed",
    "Load",
    "LoadResult",
    "Outcome",
    "Poisson",
    "Progress",
    "Prompt",
    "Route",
    "Sample",
    "Target",
    "run_load",
]
