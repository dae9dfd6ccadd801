"""The engine's kernels run in Triton's interpreter here: the variable must stand before triton is imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
