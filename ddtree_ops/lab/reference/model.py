"""Target and drafter in numpy: passes over flat tokens of several requests, attention left to the caller."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .tokenizer import MASK

BEYOND = 128  # positions past the context that a draft may reach

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
# (layer, q, k, v), each (tokens, heads, head size) → (tokens, width)
Attend = Callable[[int, Floats, Floats, Floats], Floats]


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Shape of the target."""

    vocabulary: int
    width: int = 128
    layers: int = 4
    heads: int = 4
    inner: int = 512
    context: int = 4096

    @classmethod
    def read(cls, directory: Path) -> TargetConfig:
        """From a model directory's config.json, which uses Hugging Face's names."""
        names = json.loads((directory / "config.json").read_text())
        return cls(
            vocabulary=names["vocab_size"],
            width=names["hidden_size"],
            layers=names["num_hidden_layers"],
            heads=names["num_attention_heads"],
            inner=names["intermediate_size"],
            context=names["max_position_embeddings"],
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftConfig:
    """Shape of the drafter; its block counts the last committed token."""

    width: int = 128
    heads: int = 4
    inner: int = 256
    block: int = 8

    @classmethod
    def read(cls, directory: Path) -> DraftConfig:
        """From a model directory's config.json, which uses Hugging Face's names."""
        names = json.loads((directory / "config.json").read_text())
        return cls(
            width=names["hidden_size"],
            heads=names["num_attention_heads"],
            inner=names["intermediate_size"],
            block=names["block_size"],
        )


def norm(x: Floats) -> Floats:
    """Root-mean-square normalisation without a gain."""
    squares: Floats = np.einsum("td,td->t", x, x) / np.float32(x.shape[1])
    scaled: Floats = x / np.sqrt(squares + np.float32(1e-6))[:, None]
    return scaled


def square_relu(x: Floats) -> Floats:
    """max(x, 0)², in place."""
    np.maximum(x, 0, out=x)
    return np.multiply(x, x, out=x)


class Rotary:
    """Rotary position embedding over the two halves of a head (arXiv 2104.09864)."""

    def __init__(self, size: int, positions: int) -> None:
        half = size // 2
        angle = np.arange(positions)[:, None] * 10000.0 ** (-np.arange(half) / half)
        self._table = np.stack([np.cos(angle), np.sin(angle)], 1).astype(np.float32)

    def at(self, positions: Ints) -> Callable[[Floats], Floats]:
        """What turns heads of shape (tokens, heads, size) at these positions."""
        cos, sin = self._table[positions].transpose(1, 0, 2)[:, :, None, :]
        half = cos.shape[-1]

        def turn(x: Floats) -> Floats:
            a, b = x[..., :half], x[..., half:]
            return np.concatenate([a * cos - b * sin, a * sin + b * cos], -1)

        return turn


def read_weights(directory: Path) -> dict[str, Floats]:
    """A model directory's arrays in float32."""
    with np.load(directory / "model.npz") as arrays:
        return {name: arrays[name].astype(np.float32) for name in arrays}


class Target:
    """The decoder: tokens and positions in, hidden states and features for the drafter out."""

    def __init__(self, config: TargetConfig, weights: dict[str, Floats]) -> None:
        self.config = config
        self.embed = weights["embed"]
        self._scaled = self.embed * np.float32(math.sqrt(self.config.width))
        self._head = np.ascontiguousarray(self.embed.T)
        self._layers = [
            (weights[f"qkv_{n}"], weights[f"out_{n}"], weights[f"up_{n}"], weights[f"down_{n}"])
            for n in range(config.layers)
        ]
        self._rotary = Rotary(config.width // config.heads, config.context + BEYOND)

    def forward(self, tokens: Ints, positions: Ints, attend: Attend) -> tuple[Floats, Floats]:
        """(hidden, features): (tokens, width) for `logits` and (tokens, 2·width) for the drafter."""
        c = self.config
        x = self._scaled[tokens]
        middle, turn = x, self._rotary.at(positions)
        for n, (qkv, out, up, down) in enumerate(self._layers):
            heads = (norm(x) @ qkv).reshape(len(tokens), 3 * c.heads, -1)
            turned = turn(heads[:, : 2 * c.heads])
            x = x + attend(n, turned[:, : c.heads], turned[:, c.heads :], heads[:, 2 * c.heads :]) @ out
            x = x + square_relu(norm(x) @ up) @ down
            if n + 1 == c.layers // 2:
                middle = x
        hidden = norm(x)
        return hidden, np.concatenate([norm(middle), hidden], 1)

    def logits(self, hidden: Floats) -> Floats:
        """(tokens, vocabulary) from the hidden states of `forward`."""
        return hidden @ self._head


class Draft:
    """The block drafter: one attention layer over the target's features and a block of masks."""

    def __init__(
        self, config: DraftConfig, weights: dict[str, Floats], target: Target, block: int | None = None
    ) -> None:
        self.config = config
        self.block = block or config.block
        self.weights = weights
        self._embed = norm(target.embed)
        self._head = np.ascontiguousarray(target.embed.T)
        self._rotary = Rotary(config.width // config.heads, target.config.context + BEYOND)

    def context(self, features: Floats, positions: Ints) -> tuple[Floats, Floats]:
        """Keys and values (tokens, heads, size) that the target's features at these positions give."""
        heads = self._heads(norm(features @ self.weights["context"]))
        size = self.config.heads
        return self._rotary.at(positions)(heads[:, size : 2 * size]), heads[:, 2 * size :]

    def forward(self, anchors: Ints, starts: Ints, attend: Attend) -> Floats:
        """Logits (requests, block - 1, vocabulary) for what follows each anchor at its position."""
        w, size = self.weights, self.config.heads
        ids = np.full((len(anchors), self.block), MASK)
        ids[:, 0] = anchors
        places = np.arange(self.block)
        learnt = w["place"][places % self.config.block]
        x = self._embed[ids.ravel()] @ w["token"] + np.tile(learnt, (len(anchors), 1))
        heads = self._heads(norm(x))
        turned = self._rotary.at((starts[:, None] + places).ravel())(heads[:, : 2 * size])
        x = x + attend(0, turned[:, :size], turned[:, size:], heads[:, 2 * size :]) @ w["out"]
        x = x + square_relu(norm(x) @ w["up"]) @ w["down"]
        x = x.reshape(len(anchors), self.block, -1)[:, 1:].reshape(-1, self.config.width)
        return (norm(x @ w["head"]) @ self._head).reshape(len(anchors), self.block - 1, -1)

    def _heads(self, x: Floats) -> Floats:
        return (x @ self.weights["qkv"]).reshape(len(x), 3 * self.config.heads, -1)
