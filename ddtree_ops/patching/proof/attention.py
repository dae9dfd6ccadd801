"""The tree's own TritonAttnBackend for one verify pass: metadata by mode, then its kernel."""

from __future__ import annotations

import random
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import shared, stage, stand_ins, widths
from .cases import Case

INDICES = "create_flashinfer_kv_indices_triton"


class Tree:
    """One SGLang, imported once; `roots` are directories, the first that has a file gives it."""

    def __init__(self, roots: Sequence[Path]) -> None:
        torch.set_num_threads(1)
        warnings.filterwarnings("ignore", module="triton")  # the interpreter computes masked-off lanes too
        shared.patch_once()
        self.roots = tuple(roots)
        self.spec = stage.Loose(speculative_num_steps=1, speculative_eagle_topk=4)
        self.settings = stage.settings(self.spec)
        self.sizing = widths.Sizing(self.roots, self.settings)
        self.module = stand_ins.install(self.roots, {"sglang.srt.runtime_context": self.settings})
        self.kernel = shared.Kernel()
        if INDICES in vars(self.module):
            setattr(self.module, INDICES, shared.Indices(getattr(self.module, INDICES)))


class Engine:
    """The tree as a server runs it: `block` is the drafter's block size, `budget` the tree's."""

    def __init__(self, tree: Tree, block: int, budget: int, device: str, dtype: torch.dtype) -> None:
        self.tree, self.block, self.budget, self.device, self.dtype = tree, block, budget, device, dtype
        tree.spec.speculative_num_draft_tokens = block
        self.graph_width = tree.sizing.captured(self.arguments(), block)

    def for_graphs(self, width: int) -> Engine:
        """The engine whose graphs a pass of this width runs in: itself, unless it would run eagerly."""
        if not self.tree.sizing.refuses or self.graph_width == width:
            return self
        return Engine(self.tree, width, self.budget, self.device, self.dtype)

    def arguments(self) -> stage.Loose:
        """The server arguments that decide widths."""
        return stage.Loose(
            speculative_num_draft_tokens=self.block,
            speculative_ddtree_budget=self.budget,
            speculative_num_steps=1,
            triton_attention_num_kv_splits=8,
            disable_cuda_graph=False,
            chunked_prefill_size=8192,
            enable_deterministic_inference=False,
        )


@dataclass
class Tensors:
    """Inputs of one pass; keys and values of the prefix lie scattered in the pool."""

    query: torch.Tensor  # rows and spare ones × query heads × key
    key: torch.Tensor  # … × kv heads × key
    value: torch.Tensor
    pool_key: torch.Tensor
    pool_value: torch.Tensor
    slots: torch.Tensor  # request × position → pool slot
    mask: torch.Tensor  # flat, request after request: width rows of prefix + width columns
    lengths: torch.Tensor


@dataclass
class Seen:
    """What the kernel was given and wrote."""

    output: torch.Tensor  # rows × query heads × value, NaN where nothing was written
    rows_at: list[int]  # qo_indptr
    mask_at: list[int]  # mask_indptr
    longest: int  # max_extend_len: rows of a request that are computed
    mask: torch.Tensor  # the flat mask as the kernel had it
    held: int  # rows that were computed at all: a graph may have fewer than the pass


def draw(case: Case, engine: Engine) -> Tensors:
    """Random inputs; values of tree tokens are larger, so that one column too many shows."""
    rng = torch.Generator(engine.device).manual_seed(case.seed)
    heads, width = case.heads, case.width
    total = sum(case.prefixes)
    widest = 2 * max(width, engine.block, engine.graph_width)  # room for widths that are mistaken
    room = (case.batch + case.padded) * widest

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=rng, device=engine.device).to(engine.dtype)

    key = normal(room, heads.kv, heads.key)
    pool_key = normal(total + 9, heads.kv, heads.key)
    mla = heads.value < heads.key
    value = key[..., : heads.value].contiguous() if mla else 4 * normal(room, heads.kv, heads.value)
    pool_value = pool_key[..., : heads.value] if mla else normal(total + 9, heads.kv, heads.value)
    slots = torch.zeros(case.batch + 1, stage.CONTEXT + width, dtype=torch.int32)
    order = torch.Generator().manual_seed(case.seed)
    free = torch.randperm(total + 8, generator=order)[:total] + 1
    at = 0
    for request, prefix in enumerate(case.prefixes):
        slots[request + 1, :prefix] = free[at : at + prefix].int()
        at += prefix
    return Tensors(
        query=normal(room, heads.query, heads.key),
        key=key,
        value=value,
        pool_key=pool_key,
        pool_value=pool_value,
        slots=slots.to(engine.device),
        mask=spared(mask_of(case), room * (max(case.prefixes) + widest)).to(engine.device),
        lengths=torch.tensor(case.prefixes, dtype=torch.int64, device=engine.device),
    )


def mask_of(case: Case) -> torch.Tensor:
    """The flat mask of the batch: every row sees its prefix and its ancestors."""
    parts = []
    for prefix, parents in zip(case.prefixes, case.trees, strict=True):
        tree = torch.eye(case.width, dtype=torch.bool)
        for node, parent in enumerate(parents):
            if parent >= 0:
                tree[node] |= tree[parent]
        seen = torch.ones(case.width, prefix, dtype=torch.bool)
        parts.append(torch.cat([seen, tree], 1).flatten())
    return torch.cat(parts)


def spared(mask: torch.Tensor, room: int) -> torch.Tensor:
    """The same mask in front of unused memory, for kernels that read past its end."""
    return torch.cat([mask, torch.zeros(room, dtype=mask.dtype)])[: mask.numel()]


def run(engine: Engine, case: Case, tensors: Tensors) -> Seen:
    """The pass in its mode. A graph narrower than the pass computes its own rows alone."""
    if case.mode != "eager":
        engine = engine.for_graphs(case.width)
    backend = stage.backend_of(engine, case, tensors)
    batch = stage.batch_of(engine, case, tensors, tensors.mask, tensors.lengths)
    held = case.rows
    if case.mode == "eager":
        backend.init_forward_metadata(batch)
    else:
        prepare_graph(engine, backend, case, tensors, batch)
        held = (case.batch + case.padded) * engine.graph_width
    return forward(engine, backend, case, tensors, batch, held)


def prepare_graph(engine: Engine, backend: Any, case: Case, tensors: Tensors, batch: Any) -> None:
    """Capture's metadata, and replay's over it where that is the mode."""
    held, width = case.batch + case.padded, engine.graph_width
    backend.init_cuda_graph_state(held, held * width)
    if case.mode == "capture":
        stage.metadata(backend, batch, capturing=True)
        return
    stage.metadata(backend, stage.dummy_of(engine, tensors, held), capturing=True)
    captured = backend.forward_metadata
    other = stage.batch_of(engine, case, tensors, mask_of(_shuffled(case)).to(engine.device), tensors.lengths)
    for one in (stage.pad(other, case), stage.pad(batch, case)):
        stage.metadata(backend, one, capturing=False)
    backend.forward_metadata = captured


def forward(engine: Engine, backend: Any, case: Case, tensors: Tensors, batch: Any, held: int) -> Seen:
    """One layer through `forward_extend`; `held` rows are the pass's, or those that a graph has."""
    given: dict[str, Any] = {}
    output = poisoned_pass(engine, backend, case, tensors, batch, given)
    return seen(case, output, given["given"], tensors.mask.numel(), held)


def poisoned_pass(
    engine: Engine, backend: Any, case: Case, tensors: Tensors, batch: Any, given: dict[str, Any]
) -> torch.Tensor:
    """The layer's output, NaN before the kernel writes; `given` keeps the kernel's arguments.

    Inputs and output have spare rows behind the pass, so that a kernel that overruns harms nobody.
    """
    kernel = backend.extend_attention_fwd

    def poisoned(query: Any, key: Any, value: Any, output: Any, *rest: Any, **named: Any) -> None:
        output.fill_(float("nan"))
        given["given"] = rest
        engine.tree.kernel(kernel, case, query, key, value, output, *rest, **named)

    backend.extend_attention_fwd = poisoned
    try:
        output: torch.Tensor = backend.forward_extend(
            tensors.query.flatten(1),
            tensors.key,
            tensors.value,
            stage.layer(case.heads),
            batch,
            save_kv_cache=False,
        )
    finally:
        backend.extend_attention_fwd = kernel
    return output


def seen(case: Case, output: torch.Tensor, given: tuple[Any, ...], mask_size: int, held: int) -> Seen:
    """What the kernel was given and wrote, brought to the CPU."""
    written = output.view(-1, case.heads.query, case.heads.value).float().cpu()
    written[held:] = float("nan")
    rows_at, _, _, mask, _, mask_at, longest = given[2:9]
    return Seen(
        output=written[: case.rows],
        rows_at=rows_at.tolist(),
        mask_at=mask_at.tolist(),
        longest=int(longest),
        mask=mask[: 2 * mask_size],
        held=held,
    )


def _shuffled(case: Case) -> Case:
    """The same shapes with other trees, so that a replay has something to forget."""
    rng = random.Random(case.seed)
    trees = tuple((-1, *(rng.randint(0, node - 1) for node in range(1, case.width))) for _ in case.trees)
    return Case(**{**vars(case), "trees": trees})
