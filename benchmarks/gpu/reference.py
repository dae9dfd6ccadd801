"""Acceptance computed without SGLang and without the engine: plain torch, a heap, the target's greedy output.

A drafter's proposal depends on the tokens before it alone, and a greedy walk follows the target's own output.
So the output is generated once, its features are taken from one pass, and each step only asks the drafter.
Acceptance is the mean over prompts of new tokens / verify steps, prefill's token included.

With --run, a directory that matrix.py wrote, its prompts are taken and its cells are compared, over the
prompts on which a cell gave the same output as fp32.
"""

from __future__ import annotations

import argparse
import heapq
import json
import statistics
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nn
from matrix import load
from prompts import shipped
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--pair", type=Path, required=True, help="directory with target/, draft/ and prompts.json"
    )
    parser.add_argument("--trees", default="7x1,16x4,64x8", help="budget x cap; cap 1 is the chain")
    parser.add_argument("--run", type=Path, help="compare with the cells of this run")
    parser.add_argument("--first", type=int, default=1000, help="prompts of the run to compare")
    parser.add_argument("--new-tokens", type=int, default=128)
    args = parser.parse_args()
    name, run = args.pair.name, load(args.run) if args.run else {}
    prompts = run["prompts"][name][: args.first] if run else shipped(args.pair)
    trees = [(word, *(int(part) for part in word.split("x"))) for word in args.trees.split(",")]
    outputs, steps = compute(args.pair, prompts, trees, args.new_tokens)
    print(f"{name}, {len(prompts)} prompts, mean over prompts of {args.new_tokens} / verify steps")
    for word, counts in steps.items():
        print(f"{word}: {statistics.mean(args.new_tokens / count for count in counts):.3f}")
    if run:
        compare(name, outputs, steps, run["cells"], args.new_tokens)


def compute(
    pair: Path, prompts: list[list[int]], trees: list[tuple[str, int, int]], count: int
) -> tuple[list[list[int]], dict[str, list[int]]]:
    """Greedy outputs, and each tree's verify steps for each prompt."""
    target = AutoModelForCausalLM.from_pretrained(pair / "target", dtype=torch.float32).eval()
    drafter = Drafter(pair / "draft", target)
    outputs: list[list[int]] = []
    steps: dict[str, list[int]] = {word: [] for word, _, _ in trees}
    with torch.inference_mode():
        for prompt in prompts:
            outputs.append(greedy(target, prompt, count))
            proposals = Proposals(drafter, drafter.features([*prompt, *outputs[-1]]), prompt, outputs[-1])
            for word, budget, cap in trees:
                steps[word].append(verify_steps(proposals, outputs[-1], budget, cap))
    return outputs, steps


def compare(
    pair: str, outputs: list[list[int]], steps: dict[str, list[int]], cells: dict[str, Any], count: int
) -> None:
    """Each cell's acceptance beside the computed one, over the prompts with equal output."""
    print("| cell | batch | prompts | engine | computed | ratio | prompts with equal steps |")
    print("|---|---|---|---|---|---|---|")
    for cell, result in cells.items():
        kind = cell.split("-")[1]
        word = "7x1" if kind == "chain" else kind.removeprefix("b").replace("c", "x")
        if not cell.startswith(f"{pair}-") or word not in steps:
            continue
        for batch, figures in result["batches"].items():
            same = [at for at, ids in enumerate(outputs) if figures["ids"][at] == ids]
            ours = statistics.mean(count / figures["steps"][at] for at in same)
            theirs = statistics.mean(count / steps[word][at] for at in same)
            equal = sum(figures["steps"][at] == steps[word][at] for at in same)
            told = f"{ours:.3f} | {theirs:.3f} | {ours / theirs:.4f} | {equal}"
            print(f"| {cell} | {batch} | {len(same)} | {told} |")


def greedy(target: Any, prompt: list[int], count: int) -> list[int]:
    ids = torch.tensor([prompt])
    settings = {"max_new_tokens": count, "min_new_tokens": count, "do_sample": False, "pad_token_id": 0}
    made = target.generate(ids, attention_mask=torch.ones_like(ids), **settings)
    return list(made[0, len(prompt) :].tolist())


def verify_steps(proposals: Proposals, output: list[int], budget: int, cap: int) -> int:
    """Steps until all of `output` is committed; its first token comes from prefill."""
    committed, steps = 1, 0
    while committed < len(output):
        committed += 1 + accepted(proposals.after(committed), output[committed:], budget, cap)
        steps += 1
    return steps


def accepted(logp: torch.Tensor, coming: list[int], budget: int, cap: int) -> int:
    """How far the target's output stays inside the tree of the `budget` likeliest prefixes."""
    best, token = logp.topk(min(cap, budget), -1)
    tree = {tuple(int(token[at, rank]) for at, rank in enumerate(ranks)) for ranks in likeliest(best, budget)}
    depth = 0
    while depth < len(coming) and tuple(coming[: depth + 1]) in tree:
        depth += 1
    return depth


def likeliest(best: torch.Tensor, budget: int) -> list[tuple[int, ...]]:
    """Prefixes as ranks, by best-first search over the marginals."""
    scores = best.tolist()
    heap = [(-scores[0][0], (0,))]
    taken: list[tuple[int, ...]] = []
    while heap and len(taken) < budget:
        cost, ranks = heapq.heappop(heap)
        taken.append(ranks)
        at, rank = len(ranks) - 1, ranks[-1]
        if rank + 1 < len(scores[at]):
            sibling = cost + scores[at][rank] - scores[at][rank + 1]
            heapq.heappush(heap, (sibling, (*ranks[:-1], rank + 1)))
        if at + 1 < len(scores):
            heapq.heappush(heap, (cost - scores[at + 1][0], (*ranks, 0)))
    return taken


class Proposals:
    """The drafter's marginals after each output token, each computed once."""

    def __init__(
        self, drafter: Drafter, features: torch.Tensor, prompt: list[int], output: list[int]
    ) -> None:
        self._drafter, self._features = drafter, features
        self._prompt, self._output = len(prompt), output
        self._known: dict[int, torch.Tensor] = {}

    def after(self, committed: int) -> torch.Tensor:
        """Log-probabilities [depth, vocabulary] of what follows the `committed`-th output token."""
        if committed not in self._known:
            context = self._prompt + committed - 1
            marginals = self._drafter.propose(self._features[:context], self._output[committed - 1])
            self._known[committed] = marginals
        return self._known[committed]


class Drafter:
    """A DFlash drafter: a block of mask tokens that sees itself and the target's features before it."""

    def __init__(self, path: Path, target: Any) -> None:
        config = json.loads((path / "config.json").read_text())
        self._target = target
        self._weights = {name: value.float() for name, value in load_file(path / "model.safetensors").items()}
        self._layers, self._head = config["num_hidden_layers"], config["head_dim"]
        self._groups = config["num_attention_heads"] // config["num_key_value_heads"]
        self._eps, self._block = config["rms_norm_eps"], config["block_size"]
        self._mask = config["dflash_config"]["mask_token_id"]
        self._taken = config["dflash_config"]["target_layer_ids"]
        pairs = torch.arange(0, self._head, 2).float() / self._head
        self._turns = 1.0 / config["rope_theta"] ** pairs

    def features(self, ids: list[int]) -> torch.Tensor:
        """The chosen target layers' outputs side by side, [tokens, layers × size]."""
        states = self._target(torch.tensor([ids]), output_hidden_states=True).hidden_states
        return torch.cat([states[layer + 1][0] for layer in self._taken], -1)

    def propose(self, features: torch.Tensor, current: int) -> torch.Tensor:
        """Log-probabilities of the block's positions after the current token."""
        ids = torch.tensor([current, *[self._mask] * (self._block - 1)])
        context = self._norm(features @ self._weights["fc.weight"].T, "hidden_norm.weight")
        hidden = self._target.get_input_embeddings()(ids)
        for number in range(self._layers):
            hidden = self._layer(f"layers.{number}.", hidden, context)
        logits = self._norm(hidden[1:], "norm.weight") @ self._target.lm_head.weight.T
        return torch.log_softmax(logits, -1)

    def _layer(self, name: str, hidden: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        before = self._norm(hidden, f"{name}input_layernorm.weight")
        hidden = hidden + self._attend(f"{name}self_attn.", before, context)
        inner = self._norm(hidden, f"{name}post_attention_layernorm.weight")
        gate = nn.silu(inner @ self._weights[f"{name}mlp.gate_proj.weight"].T)
        up = inner @ self._weights[f"{name}mlp.up_proj.weight"].T
        return hidden + (gate * up) @ self._weights[f"{name}mlp.down_proj.weight"].T

    def _attend(self, name: str, hidden: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        start, both = context.shape[0], torch.cat([context, hidden])
        query = self._norm(self._heads(hidden, f"{name}q_proj.weight"), f"{name}q_norm.weight")
        key = self._norm(self._heads(both, f"{name}k_proj.weight"), f"{name}k_norm.weight")
        value = self._heads(both, f"{name}v_proj.weight")
        query, key = self._rotated(query, start), self._rotated(key, 0)
        key, value = (one.repeat_interleave(self._groups, 1) for one in (key, value))
        out = nn.scaled_dot_product_attention(*(one.transpose(0, 1) for one in (query, key, value)))
        return out.transpose(0, 1).flatten(1) @ self._weights[f"{name}o_proj.weight"].T

    def _heads(self, hidden: torch.Tensor, name: str) -> torch.Tensor:
        return (hidden @ self._weights[name].T).view(hidden.shape[0], -1, self._head)

    def _norm(self, value: torch.Tensor, name: str) -> torch.Tensor:
        scale = torch.rsqrt(value.pow(2).mean(-1, keepdim=True) + self._eps)
        return value * scale * self._weights[name]

    def _rotated(self, value: torch.Tensor, start: int) -> torch.Tensor:
        angle = (torch.arange(value.shape[0]) + start)[:, None].float() * self._turns
        cos, sin = angle.cos()[:, None], angle.sin()[:, None]
        one, other = value.chunk(2, -1)
        return torch.cat([one * cos - other * sin, other * cos + one * sin], -1)


if __name__ == "__main__":
    main()
