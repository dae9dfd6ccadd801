"""GPU readings taken beside a load, summed up: a hot or throttled card explains many a difference."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from ddtree_ops.measure.metrics import Spread, spread
from ddtree_ops.model.errors import Refused
from ddtree_ops.model.facts import Gpu

SIMULATED = ("SGLANG_SIMULATE_ACC_LEN", "SIMULATE_ACC_LEN")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuLoad:
    """One GPU over the time of a load."""

    index: int
    name: str
    sm_clock_mhz: Spread | None
    power_w: Spread | None
    temperature_c: Spread | None
    memory_used_mib: Spread | None


def gpu_loads(readings: Iterable[Sequence[Gpu]]) -> tuple[GpuLoad, ...]:
    """Readings over time, each of all GPUs, as one GpuLoad a GPU."""
    seen: dict[int, list[Gpu]] = {}
    for reading in readings:
        for gpu in reading:
            seen.setdefault(gpu.index, []).append(gpu)
    return tuple(
        GpuLoad(
            index=index,
            name=gpus[0].name,
            sm_clock_mhz=spread(gpu.sm_clock_mhz for gpu in gpus),
            power_w=spread(gpu.power_w for gpu in gpus),
            temperature_c=spread(gpu.temperature_c for gpu in gpus),
            memory_used_mib=spread(gpu.memory_used_mib for gpu in gpus),
        )
        for index, gpus in sorted(seen.items())
    )


def refuse_simulated(environment: Mapping[str, str], *, where: str) -> None:
    """Raises Refused when the engine's environment makes SGLang invent its accept length."""
    for name in SIMULATED:
        value = environment.get(name, "").strip()
        if value and not _off(value):
            raise Refused(
                where,
                f"got {name}={value}, expected it unset: accept length would be invented",
                hint=f"remove {name} from the unit's environment and deploy again",
            )


def _off(value: str) -> bool:
    """SGLang simulates above 0 only."""
    try:
        return float(value) <= 0
    except ValueError:
        return False
