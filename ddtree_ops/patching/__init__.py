"""Patch sets: contract, anchored edits, diffs and their proof."""
