"""What a probe found on a node."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Sources(StrEnum):
    """How the installed sglang package compares with its wheel's RECORD hashes."""

    STOCK = "stock"
    PATCHED = "patched"  # differs, and a known patch set explains every difference
    MODIFIED = "modified"
    UNVERIFIED = "unverified"  # no RECORD: editable install or source tree
    MISSING = "missing"


class DdtreeFlags(StrEnum):
    """By which flags an SGLang takes a draft-tree budget; read from its own ServerArgs."""

    OURS = "ours"  # --speculative-ddtree-budget / --speculative-ddtree-topk-cap
    ALGORITHM = "algorithm"  # --speculative-algorithm DDTREE + SGLANG_DDTREE_MAX_TOPK
    OTHER = "other"
    NONE = "none"


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuProcess:
    pid: int
    name: str
    memory_mib: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Gpu:
    index: int
    name: str
    arch: str  # "sm_103"
    driver: str
    memory_total_mib: int
    memory_used_mib: int
    link: str  # "NVLink" | "PCIe" | "none"
    sm_clock_mhz: int | None = None
    power_w: float | None = None
    temperature_c: int | None = None
    processes: tuple[GpuProcess, ...] = ()

    @property
    def memory_free_mib(self) -> int:
        return self.memory_total_mib - self.memory_used_mib


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFile:
    """One file of the sglang package, path relative to the package's parent (`sglang/srt/…`)."""

    path: str
    sha256: str
    text: str | None = None  # None: not asked for, or absent from the node
    recorded: str | None = None  # sha256 that the wheel's RECORD promises; None: it names no such file


@dataclass(frozen=True, slots=True, kw_only=True)
class Sglang:
    version: str | None
    package: str | None  # absolute directory that holds `sglang/`
    sources: Sources
    editable: bool = False
    modified: tuple[NodeFile, ...] = ()  # files whose hash differs from RECORD, with their text
    files: tuple[NodeFile, ...] = ()  # files whose text the caller asked for
    ddtree: DdtreeFlags = DdtreeFlags.NONE
    known_flags: frozenset[str] = frozenset()  # every --flag that the node's ServerArgs takes
    torch: str | None = None
    triton: str | None = None
    kernel: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """`systemctl show` of one service."""

    name: str  # with ".service"
    path: str | None = None  # FragmentPath
    text: str | None = None
    enabled: bool = False
    active: str = "inactive"  # ActiveState
    ended: bool = True  # nothing runs, and no job is queued that would start it
    sub: str = "dead"  # SubState
    result: str = "success"
    main_pid: int = 0
    restarts: int = 0  # NRestarts
    invocation: str = ""  # InvocationID
    exec_start: tuple[str, ...] = ()  # argv of the running or next process
    drop_ins: tuple[str, ...] = ()

    @property
    def running(self) -> bool:
        return self.active == "active"


@dataclass(frozen=True, slots=True, kw_only=True)
class Listener:
    port: int
    address: str
    pid: int | None = None
    process: str | None = None
    unit: str | None = None  # systemd unit that the process belongs to


@dataclass(frozen=True, slots=True, kw_only=True)
class Lock:
    who: str
    run: str
    since: str  # ISO 8601, the node's clock
    expires_in_s: float  # by the node's clock, at the time of the probe; ≤ 0: left by a dead run


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """The armed dead-man switch of one service."""

    run: str
    release: str
    previous: str
    lease_left_s: float
    state: str  # "armed" | "reverting"


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeFacts:
    """Everything one probe of one service brings back."""

    node: str
    hostname: str
    os: str
    kernel: str
    machine: str  # "x86_64"
    python: str  # version of the Python that runs the agent
    user: str
    root: bool  # the agent runs as root, by itself or through sudo
    systemd: str | None  # "252", "stand-in 1", None
    state_dir: str  # as the node's processes see it, e.g. /var/lib/ddtree-ops
    unit_dir: str  # e.g. /etc/systemd/system
    clock_skew_s: float  # node's clock minus the operator's
    disk_free_mib: int  # of state_dir's file system
    venv_python: str | None  # version of the venv's Python; None: no venv
    sglang: Sglang
    unit: Unit  # the service asked for
    engines: tuple[Unit, ...] = ()  # every unit that runs SGLang
    listeners: tuple[Listener, ...] = ()
    gpus: tuple[Gpu, ...] = ()
    gpu_note: str = ""  # why gpus is empty, in words
    paths: tuple[tuple[str, bool], ...] = ()  # (path asked about, exists)
    lock: Lock | None = None
    guard: Guard | None = None
    current: str | None = None  # release ids
    previous: str | None = None
    releases: tuple[str, ...] = ()  # oldest first
    manifest: dict[str, object] | None = None  # release.json of the current release
    model_files: tuple[tuple[str, str], ...] = ()  # (name, text) of the model's small files

    def exists(self, path: str) -> bool | None:
        """Whether the path is there; None when the probe was not asked."""
        return dict(self.paths).get(path)
