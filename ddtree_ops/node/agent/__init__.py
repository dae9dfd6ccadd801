"""The node's side: standard library alone, Python 3.8 and later, joined into one program.

These files never run from an installed package: `ddtree_ops.node.bundle` joins them in the order
of their imports, and the program goes to the node over SSH. So every top-level name is unique
among them, and they import one another only as `from .module import name`.
"""
