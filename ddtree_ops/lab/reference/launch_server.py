"""`python -m reference_engine.launch_server`, with the flags of `sglang.launch_server`."""

from __future__ import annotations

import os
import sys

for _name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ.setdefault(_name, "1")  # before numpy is imported: one busy core an engine

from .server import launch  # noqa: E402

if __name__ == "__main__":
    launch(sys.argv[1:])
