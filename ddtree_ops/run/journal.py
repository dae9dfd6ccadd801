"""The operator's own copy of what runs did, beside the node's."""

from __future__ import annotations

import json
import os
import re
from dataclasses import asdict
from pathlib import Path

from ddtree_ops.model.errors import OpsError
from ddtree_ops.model.ports import Clock
from ddtree_ops.node.values import Entry


class LocalJournal:
    """Append-only JSONL, one file a node, under the operator's state directory."""

    def __init__(self, folder: Path, clock: Clock) -> None:
        self._folder, self._clock = folder, clock

    def append(self, node: str, entry: Entry) -> None:
        """Adds one line; raises OpsError when the disk refuses it."""
        path = self._folder / f"{re.sub(r'[^A-Za-z0-9._-]', '_', node)}.jsonl"
        line = json.dumps({"at": self._clock.utc(), "node": node, **asdict(entry)}) + "\n"
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            with path.open("a", encoding="utf-8") as file:
                file.write(line)
                file.flush()
                os.fsync(file.fileno())
        except OSError as error:
            raise OpsError(
                str(path), f"got {error.strerror}, expected a writable journal", node=node
            ) from error
