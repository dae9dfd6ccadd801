"""placeholder"""

from dataclasses import dataclass


@dataclass
class Peer:
    name: str = ""


PEERS = {}


def install(p, f): ...
