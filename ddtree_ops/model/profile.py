"""A profile: everything that decides an engine's command line."""

from __future__ import annotations

from dataclasses import dataclass

MODULE = "sglang.launch_server"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine as its operator wants it; paths are absolute paths on the node."""

    name: str
    service: str  # unit name without ".service"
    venv: str
    model: str
    port: int
    host: str = "127.0.0.1"
    launcher: str = MODULE  # module that the venv's Python runs with -m
    drafter: str | None = None
    tp: int = 1
    budget: int | None = None  # draft-tree nodes without the root; None: no tree
    topk: int | None = None  # children a tree node may have; None: no cap
    cuda_graph: bool = True
    graph_max_batch: int | None = None
    patches: tuple[str, ...] | None = None  # None: what the goal needs; (): none
    extra_flags: tuple[str, ...] = ()  # verbatim words, unknown ones too
    environment: tuple[tuple[str, str], ...] = ()
    environment_file: str | None = None  # secrets stay in it, 0600 on the node
    user: str | None = None
    working_directory: str | None = None
    limits: tuple[tuple[str, str], ...] = (("LimitNOFILE", "1048576"), ("LimitMEMLOCK", "infinity"))
    unit_lines: tuple[tuple[str, str], ...] = ()  # (section, verbatim line) that we have no field for
    load_timeout_s: int = 1800
    stop_timeout_s: int = 180

    @property
    def unit(self) -> str:
        return f"{self.service}.service"

    @property
    def speculative(self) -> bool:
        return self.drafter is not None

    @property
    def verify_width(self) -> int | None:
        """Tokens that one verify pass feeds per request, root included; None without a tree."""
        return None if self.budget is None else self.budget + 1
