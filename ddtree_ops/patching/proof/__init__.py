"""The proof: a given SGLang's own attention, run on random trees and compared row by row.

The modules need torch and triton, and nothing of ddtree_ops: they run wherever those two are, on
this machine's CPU or under a node's own Python (see `bundle`). Only `bundle`, `memory`,
`outcome` and `picture` may be imported without torch.
"""
