"""What every verb stands on: the node's folders, and failures in words."""

from __future__ import annotations

import os
import re
from typing import Any, Dict

Json = Dict[str, Any]
SERVICE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9:_.@-]{0,199}")
RELEASE_ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


class Problem(Exception):
    """An error that the operator reads; `kind` is refused, failed or usage."""

    def __init__(self, what: str, message: str, hint: str = "", kind: str = "failed") -> None:
        super().__init__(message)
        self.what, self.message, self.hint, self.kind = what, message, hint, kind

    def as_json(self) -> Json:
        return {"what": self.what, "message": self.message, "hint": self.hint, "kind": self.kind}


def node_root() -> str:
    """Where this node's files begin: "/", but for a node that lives in a folder of its own."""
    return os.environ.get("DDTREE_OPS_ROOT") or "/"


class Place:
    """The folders and files of one service on this node."""

    def __init__(self, service: str) -> None:
        if not isinstance(service, str) or not SERVICE_NAME.fullmatch(service):
            raise Problem(
                "service",
                f"got {service!r}, expected a unit name of letters, digits and : _ . @ - alone",
                "correct the profile's service",
                "usage",
            )
        root = node_root()
        self.service = service
        self.unit_name = service + ".service"
        self.unit_dir = os.path.join(root, "etc/systemd/system")
        self.unit = os.path.join(self.unit_dir, self.unit_name)
        self.state_dir = os.path.join(root, "var/lib/ddtree-ops")
        self.dir = os.path.join(self.state_dir, service)
        self.releases = os.path.join(self.dir, "releases")
        self.current = os.path.join(self.dir, "current")
        self.previous = os.path.join(self.dir, "previous")
        self.journal = os.path.join(self.dir, "journal.jsonl")
        self.lock = os.path.join(self.dir, "lock")
        self.guard = os.path.join(self.dir, "guard.json")
        self.agent = os.path.join(self.dir, "agent.py")
        self.mutex = os.path.join(self.dir, ".mutex")
        self.guard_name = "ddtree-ops-guard-" + service

    def release(self, release: str) -> str:
        if not isinstance(release, str) or not RELEASE_ID.fullmatch(release):
            raise Problem(
                "release", f"got {release!r}, expected letters, digits and . _ - alone", "", "usage"
            )
        return os.path.join(self.releases, release)

    def release_unit(self, release: str) -> str:
        return os.path.join(self.release(release), self.unit_name)
