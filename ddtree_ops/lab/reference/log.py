"""Log lines in SGLang's and uvicorn's form."""

from __future__ import annotations

import logging
import sys

FORMAT = "[%(asctime)s] %(message)s"
DATES = "%Y-%m-%d %H:%M:%S"

engine = logging.getLogger("sglang")
http = logging.getLogger("uvicorn.error")
access = logging.getLogger("uvicorn.access")


class _Uvicorn(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        record.message = record.getMessage()
        stamp = self.formatTime(record, DATES)
        return f"[{stamp}] {record.levelname + ':':9} {record.message}"


def configure(level: str) -> None:
    """The engine and uvicorn's errors to stderr, accesses to stdout."""
    logging.basicConfig(level=level.upper(), format=FORMAT, datefmt=DATES, force=True)
    for logger, stream in ((http, sys.stderr), (access, sys.stdout)):
        handler = logging.StreamHandler(stream)
        handler.setFormatter(_Uvicorn())
        logger.handlers, logger.propagate = [handler], False
