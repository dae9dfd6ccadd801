"""The engine's kernels run in Triton's interpreter: the variable must stand before triton is imported."""

import os

os.environ.setdefault("TRITON_INTERPRET", "1")
