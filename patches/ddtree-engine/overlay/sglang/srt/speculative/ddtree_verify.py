"""The verify pass's input: a batch of trees as SGLang's attention backends and schedulers see it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Optional

from sglang.srt.speculative.ddtree_tree import DraftTree, mask
from sglang.srt.speculative.dflash_info import DFlashVerifyInput


@dataclass
class DDTreeVerifyInput(DFlashVerifyInput):
    """A tree's rows in place of a draft block's; committing them is the worker's task."""

    tree: Optional[DraftTree] = None

    @classmethod
    def of(cls, tree: DraftTree) -> DDTreeVerifyInput:
        return cls(
            draft_token=tree.token.view(-1),
            positions=tree.position.view(-1),
            draft_token_num=tree.token.shape[1],
            tree=tree,
        )

    def prepare(self, batch: Any, depth: int) -> None:
        """Takes KV slots for every row, lists them after the prefix, and builds the mask."""
        self.prepare_for_verify(batch, 1, build_custom_mask=False)
        prefixes = int(batch.seq_lens_cpu.sum())  # the host's own lengths: the mask is written by them
        self.custom_mask = mask(self.tree.parent, batch.seq_lens, prefixes, depth)

    def verify(self, **_: Any) -> None:
        raise RuntimeError("DDTree rows are verified by DDTreeWorker, not as a chain.")
