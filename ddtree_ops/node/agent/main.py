"""The program's ends: a request on stdin and a reply on stdout, or the guard's two commands."""

from __future__ import annotations

import errno
import json
import os
import sys
import traceback
import zlib
from typing import Any, Callable

from .base import Json, Place, Problem, node_root
from .probe import disk_free, verb_probe
from .verbs import (
    verb_api_key,
    verb_arm,
    verb_conclude,
    verb_found,
    verb_history,
    verb_install,
    verb_lock,
    verb_note,
    verb_observe,
    verb_renew,
    verb_restart,
    verb_revert,
    verb_stage,
    verb_unit_of,
    verb_unlock,
    verb_verify_unit,
)
from .watch import settle, watch

REPLY_MARK = b"\n--ddtree-ops-reply--\n"  # login scripts may write before it
VERBS: dict[str, Callable[[Place, Json], Any]] = {
    "probe": verb_probe,
    "lock": verb_lock,
    "unlock": verb_unlock,
    "found": verb_found,
    "stage": verb_stage,
    "verify_unit": verb_verify_unit,
    "arm": verb_arm,
    "renew": verb_renew,
    "install": verb_install,
    "restart": verb_restart,
    "observe": verb_observe,
    "conclude": verb_conclude,
    "revert": verb_revert,
    "note": verb_note,
    "history": verb_history,
    "unit_of": verb_unit_of,
    "api_key": verb_api_key,
}


def answer(request: Json) -> Json:
    """{"ok": …} or {"error": …}; nothing else ever comes back."""
    try:
        return {"ok": _verb_of(request)(Place(request["service"]), request)}
    except Problem as problem:
        return {"error": problem.as_json()}
    except OSError as error:
        return {"error": in_words(error).as_json()}
    except KeyError as error:
        return {"error": Problem("agent", f"the request lacks {error}", "", "usage").as_json()}
    except Exception as error:
        return {"error": _defect(error).as_json()}


def _verb_of(request: Json) -> Callable[[Place, Json], Any]:
    verb = VERBS.get(request.get("verb", ""))
    if verb is None:
        message = f"got verb {request.get('verb')!r}, expected one of {', '.join(VERBS)}"
        raise Problem("agent", message, "", "usage")
    return verb


def _defect(error: Exception) -> Problem:
    """A fault of this program: where it happened, for its author."""
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return Problem(
        "agent", f"{type(error).__name__}: {error} (in {frame.name}, line {frame.lineno})", "report it"
    )


def in_words(error: OSError) -> Problem:
    """What the system would not do, and what helps."""
    what = str(error.filename or "files")
    if error.errno in (errno.EACCES, errno.EPERM):
        return Problem(
            what, "permission denied", "log in as root, or set sudo: true for this host", "refused"
        )
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        free = disk_free(os.path.dirname(what) if error.filename else node_root())
        return Problem(what, f"no space left on the node ({free} MiB free)", "make room and try again")
    if error.errno == errno.EROFS:
        return Problem(what, "the file system is read-only", "look at the node's dmesg; remount it")
    return Problem(what, error.strerror or str(error))


def serve() -> int:
    request = json.loads(zlib.decompress(sys.stdin.buffer.read()).decode())
    request.setdefault("source", globals().get("SOURCE", b"").decode())
    reply = zlib.compress(json.dumps(answer(request)).encode(), 6)
    sys.stdout.buffer.write(REPLY_MARK + reply)
    sys.stdout.buffer.flush()
    return 0


def run_guard(command: str, service: str) -> int:
    """The guard's commands fail loudly: systemd keeps the words, and its timer tries again."""
    try:
        {"guard-settle": settle, "guard": watch}[command](Place(service))
    except (Problem, OSError) as error:
        problem = in_words(error) if isinstance(error, OSError) else error
        sys.stderr.write(f"{problem.what}: {problem.message}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(run_guard(*sys.argv[1:3]) if len(sys.argv) > 2 else serve())
