"""Passes over the models: prefill, decode, verify of chains and trees, eager or through static buffers."""

from __future__ import annotations

import ast
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .attention import FlatExtend, causal_attention, extend_attention
from .faults import Faults
from .kv import Pool, PrefixCache
from .model import Draft, DraftConfig, Floats, Ints, Target, TargetConfig, read_weights
from .request import Request
from .server_args import CAPACITY, ServerArgs
from .tokenizer import Tokenizer
from .tree import Tree, best_first, chain
from .verify_width import staged_backend, verify_width


class Graphs:
    """Static inputs and outputs, one set for the largest batch; a replay runs on their leading rows.

    A pass that has more rows than were captured for its batch is cut to them, and the rest of the
    outputs is what an earlier replay left there.
    """

    def __init__(self, target: Target, max_batch: int, rows: int) -> None:
        self.max_batch, self.rows = max_batch, rows
        self.tokens = np.zeros(max_batch * rows, np.int64)
        self.positions = np.zeros(max_batch * rows, np.int64)
        self.hidden, _ = target.forward(self.tokens, self.positions, _own_values)

    def fit(self, batch: int) -> bool:
        """Whether a graph was captured for this many requests."""
        return batch <= self.max_batch


class Runner:
    """The target, the drafter and their pool, on one pretended GPU."""

    def __init__(self, args: ServerArgs, faults: Faults) -> None:
        self.args, self.faults = args, faults
        directory = Path(args.model_path)
        self.tokenizer = Tokenizer.load(Path(str(args.tokenizer_path)))
        self.target = Target(TargetConfig.read(directory), read_weights(directory))
        self.draft = self._load_draft() if args.speculative_algorithm else None
        self.graphs: Graphs | None = None
        # Attention writes here in every pass, as on a GPU the allocator hands the same memory out again:
        # a row that a pass does not reach holds what an earlier one left.
        self._out = np.zeros((1, self.target.config.width), np.float32)

    def _load_draft(self) -> Draft:
        directory = Path(str(self.args.speculative_draft_model_path))
        weights, config = read_weights(directory), DraftConfig.read(directory)
        if "wrong-drafter" in self.faults:
            weights["context"] = weights["context"][::-1].copy()
        if "draft-quantised" in self.faults and self.args.speculative_draft_model_quantization != "unquant":
            weights = {name: np.sign(w) * np.abs(w).mean() for name, w in weights.items()}
        block = int(self.args.speculative_num_draft_tokens or config.block)
        longer = "block-size" in self.faults and self.args.speculative_dflash_block_size is None
        return Draft(config, weights, self.target, 2 * block if longer else block)

    def allocate(self) -> None:
        """The pool and the prefix cache, and the widths that the staged attention backend gives."""
        slots = self.args.max_total_tokens or int(CAPACITY * float(self.args.mem_fraction_static or 1))
        self.pool = Pool(self.target.config, self.draft.config if self.draft else None, slots)
        self.cache = PrefixCache(self.pool, enabled=not self.args.disable_radix_cache)
        source = staged_backend().read_text()
        ast.parse(source)
        if self.draft is None:
            return
        self.width = verify_width(source, self.args, draft=False)
        self.draft_width = verify_width(source, self.args, draft=True)
        budget, block = self.args.speculative_ddtree_budget, int(self.args.speculative_num_draft_tokens or 0)
        self.rows = block if budget is None else budget + 1
        self.block = block
        self._draft_out = np.zeros((1, self.draft.config.width), np.float32)

    def capture(self) -> None:
        """The static buffers, for the batches up to --cuda-graph-max-bs."""
        rows = 1
        if self.draft:
            rows = self.block if "graph-width" in self.faults else self.width
        self.graphs = Graphs(self.target, int(self.args.cuda_graph_max_bs or 1), rows)

    def prefill(self, requests: Sequence[Request]) -> None:
        """Computes what of the prompts is not cached, caches it, and commits each first token."""
        for request in requests:
            request.slots = self.cache.match(request.prompt[:-1])
            request.cached = request.held = len(request.slots)
            if "prefix-cache" in self.faults:
                self.pool.give_back(request.slots)
        new = [request.prompt[request.cached :] for request in requests]
        for request, tokens in zip(requests, new, strict=True):
            request.slots = np.concatenate([request.slots, self._take(len(tokens))])
        hidden = self._causal_pass(requests, [len(tokens) for tokens in new], np.concatenate(new))
        ends = np.cumsum([len(tokens) for tokens in new]) - 1
        for request, logits in zip(requests, self.target.logits(hidden[ends]), strict=True):
            self._share(request, request.prompt)
            request.commit([request.sampling.choose(logits, request.rng)], request.slots[:0], self.tokenizer)

    def decode(self, requests: Sequence[Request]) -> bool:
        """One token for each request; returns whether a graph ran."""
        for request in requests:
            request.slots = np.concatenate([request.slots, self._take(1)])
        tokens = np.array([request.last for request in requests])
        hidden = self._causal_pass(requests, [1] * len(requests), tokens)
        for request, logits in zip(requests, self.target.logits(hidden), strict=True):
            request.commit([request.sampling.choose(logits, request.rng)], request.slots[:0], self.tokenizer)
        return self.graphs is not None and self.graphs.fit(len(requests))

    def verify(self, requests: Sequence[Request]) -> bool:
        """Drafts, verifies and commits one block or tree for each request; returns whether a graph ran."""
        trees = self._draft_trees(requests)
        slots = [self._take(self.rows) for _ in requests]
        graph = self.graphs if self.graphs and self.graphs.fit(len(requests)) else None
        logits = self._verify_pass(requests, trees, np.concatenate(slots), graph)
        for number, (request, tree, own) in enumerate(zip(requests, trees, slots, strict=True)):
            rows, tokens = tree.walk(partial(_choice, request, logits[number * self.rows :]))
            if "topk" in self.faults:
                rows = list(range(len(rows)))
            count = request.commit(tokens, own[rows], self.tokenizer)
            request.verify_steps += 1
            request.histogram.append(count - 1)
            self.pool.give_back(np.delete(own, rows[:count]))
        return graph is not None

    def finish(self, request: Request) -> None:
        """Leaves a request's keys and values to the prefix cache, whatever pass wrote them."""
        tokens = request.tokens[: len(request.slots)]
        self._share(request, tokens)
        self.cache.release(tokens, request.slots)

    def _share(self, request: Request, tokens: Sequence[int]) -> None:
        request.slots = self.cache.insert(tokens, request.slots, request.held)
        request.held = len(request.slots)

    def _take(self, count: int) -> Ints:
        self.cache.make_room(count)
        return self.pool.take(count)

    def _causal_pass(self, requests: Sequence[Request], counts: Sequence[int], tokens: Ints) -> Floats:
        """Hidden states of each request's last `counts` tokens, whose slots are its last ones."""
        ends = np.cumsum(counts)
        slots = np.concatenate([r.slots[-count:] for r, count in zip(requests, counts, strict=True)])
        positions = np.concatenate(
            [np.arange(len(r.slots) - count, len(r.slots)) for r, count in zip(requests, counts, strict=True)]
        )

        out = self._out = _grown(self._out, len(tokens))

        def attend(layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
            self.pool.write(layer, slots, k, v)
            kv = self.pool.layers[layer]
            for r, count, end in zip(requests, counts, ends, strict=True):
                out[end - count : end] = causal_attention(q[end - count : end], kv[r.slots])
            return out[: len(q)]

        hidden, features = self.target.forward(tokens, positions, attend)
        if self.draft:
            self.pool.write_draft(slots, *self.draft.context(features, positions))
        return hidden

    def _draft_trees(self, requests: Sequence[Request]) -> list[Tree]:
        assert self.draft is not None
        lengths = [len(r.slots) for r in requests]
        width = self.draft_width * self.draft.block // self.block
        plan = FlatExtend.of(width, lengths, None)
        prefixes = [self.pool.draft[r.slots] for r in requests]
        out = self._draft_out = _grown(self._draft_out, len(requests) * self.draft.block)

        def attend(_: int, q: Floats, k: Floats, v: Floats) -> Floats:
            extend_attention(q, k, v, prefixes, plan, out)
            return out[: len(q)]

        anchors = np.array([r.last for r in requests])
        step = self.draft.block // self.block
        logits = self.draft.forward(anchors, np.array(lengths), attend)[:, step - 1 :: step]
        logits = logits[:, : self.block - 1]
        budget, cap = self.args.speculative_ddtree_budget, self.args.speculative_ddtree_topk_cap
        if budget is None:
            return [chain(int(anchor), own) for anchor, own in zip(anchors, logits, strict=True)]
        return [
            best_first(int(anchor), own, budget, cap) for anchor, own in zip(anchors, logits, strict=True)
        ]

    def _verify_pass(
        self, requests: Sequence[Request], trees: Sequence[Tree], slots: Ints, graph: Graphs | None
    ) -> Floats:
        """Logits of all trees' rows. The mask is laid out for the rows that there are; how it is read is
        the staged backend's affair.
        """
        assert self.draft is not None
        lengths = [len(r.slots) for r in requests]
        mask = self._flat_mask(trees, lengths)
        plan = FlatExtend.of(self.width, lengths, mask, shared="batch" in self.faults)
        tokens = np.concatenate([tree.tokens for tree in trees])
        positions = np.concatenate([n + tree.depths for n, tree in zip(lengths, trees, strict=True)])
        out = self._out = _grown(self._out, len(tokens))
        count = min(len(tokens), len(requests) * graph.rows) if graph else len(tokens)

        def attend(layer: int, q: Floats, k: Floats, v: Floats) -> Floats:
            kv = self.pool.layers[layer]
            extend_attention(q, k, v, [kv[r.slots] for r in requests], plan, out)
            self.pool.write(layer, slots[: len(q)], k, v)
            return out[: len(q)]

        if graph:
            graph.tokens[:count], graph.positions[:count] = tokens[:count], positions[:count]
            tokens, positions = graph.tokens[:count], graph.positions[:count]
        hidden, features = self.target.forward(tokens, positions, attend)
        self.pool.write_draft(slots[:count], *self.draft.context(features, positions))
        if graph:
            graph.hidden[:count] = hidden
            hidden = _grown(graph.hidden, len(slots))[: len(slots)]
        return self.target.logits(hidden)

    def _flat_mask(self, trees: Sequence[Tree], lengths: Sequence[int]) -> NDArray[np.bool_]:
        """Per request (rows, prefix + rows) bits, the prefix visible to all; one after the other."""
        parts = []
        for tree, length in zip(trees, lengths, strict=True):
            bits = np.ones((self.rows, length + self.rows), dtype=bool)
            bits[:, length:] = tree.visible()
            parts.append(bits.ravel())
        return np.concatenate(parts)


def _grown(buffer: Floats, rows: int) -> Floats:
    """The buffer, with rows added when it is too short; what it held stays."""
    if len(buffer) >= rows:
        return buffer
    return np.concatenate([buffer, np.zeros((rows - len(buffer), *buffer.shape[1:]), np.float32)])


def _own_values(_layer: int, _q: Floats, _k: Floats, v: Floats) -> Floats:
    """Attention of the capture's dummy rows, which see themselves alone."""
    return v.reshape(len(v), -1)


def _choice(request: Request, logits: Floats, row: int) -> int:
    return request.sampling.choose(logits[row], request.rng)
