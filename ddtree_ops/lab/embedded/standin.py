"""The programs `systemctl`, `journalctl` and `systemd-analyze` of an embedded node: its server answers them.

Stands alone (standard library, no imports from the package), since it starts several times a second.
"""

import json
import os
import socket
import sys


def main() -> int:
    """Passes the command line on; returns the exit status that the server gives."""
    root = os.environ.get("DDTREE_OPS_ROOT") or os.environ.get("DDTREE_OPS_LAB_ROOT")
    if not root:
        sys.stderr.write(
            "this stand-in works inside an embedded lab node alone (DDTREE_OPS_ROOT is not set)\n"
        )
        return 1
    request = json.dumps({"argv": sys.argv[1:], "cwd": os.getcwd()}) + "\n"  # noqa: PTH109  # pathlib costs 10 ms here
    link = socket.socket(socket.AF_UNIX)
    os.chdir(os.path.dirname(root))  # noqa: PTH120  # a socket's path may have 108 bytes, so it is given relative
    try:
        link.connect("control")
    except OSError as error:
        sys.stderr.write(f"Failed to connect to the node's supervisor: {error}\n")
        return 1
    link.sendall(request.encode())
    return _relay(link)


def _relay(link: socket.socket) -> int:
    with link.makefile("r", encoding="utf-8") as lines:
        for line in lines:
            kind, value = json.loads(line)
            if kind == "rc":
                return int(value)
            stream = sys.stdout if kind == "out" else sys.stderr
            stream.buffer.write(value.encode("utf-8", "surrogateescape"))
            stream.flush()
    return 1


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (BrokenPipeError, KeyboardInterrupt):
        sys.exit(130)
