"""`python -m ddtree_ops`: the same as the command `ddtree-ops`."""

from ddtree_ops.cli.main import main

main()
