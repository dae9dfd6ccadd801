"""The proof as one Python source, for a Python that has torch and triton and not this package."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

PACKAGE = "ddtree_proof"

_HEAD = """\
import importlib.abc, importlib.machinery, linecache, sys

SOURCES = {sources!r}


class Memory(importlib.abc.MetaPathFinder, importlib.abc.InspectLoader):
    def find_spec(self, name, path=None, target=None):
        if name not in SOURCES:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=self.is_package(name))

    def is_package(self, name):
        return name == {package!r}

    def get_source(self, name):
        return SOURCES[name]

    def exec_module(self, module):
        name = module.__name__
        file = "<" + name + ">"
        linecache.cache[file] = (len(SOURCES[name]), None, SOURCES[name].splitlines(True), file)
        exec(compile(SOURCES[name], file, "exec"), module.__dict__)


sys.meta_path.insert(0, Memory())
from {package}.__main__ import main

sys.exit(main({argv!r}))
"""


def script(argv: Sequence[str]) -> str:
    """Source to feed to `python -`: it proves what these arguments say (see `__main__`) and prints JSON.

    Exit codes: 0 every row right, 1 rows are wrong, 2 arguments or tree unusable. Nothing is written.
    """
    folder = Path(__file__).parent
    sources = {PACKAGE: ""}
    for file in sorted(folder.glob("*.py")):
        if file.name not in ("__init__.py", Path(__file__).name):
            sources[f"{PACKAGE}.{file.stem}"] = file.read_text(encoding="utf-8")
    return _HEAD.format(sources=sources, package=PACKAGE, argv=list(argv))
