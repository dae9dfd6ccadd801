"""Target and drafter in torch, for training; `ddtree_ops.lab.reference.model` runs the same in numpy."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn import functional

from ddtree_ops.lab.reference.model import DraftConfig, TargetConfig
from ddtree_ops.lab.reference.tokenizer import MASK


def norm(x: Tensor) -> Tensor:
    """Root-mean-square normalisation without a gain."""
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


def rotate(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary position embedding over the two halves of the head; x is (batch, time, heads, size)."""
    half = x.shape[-1] // 2
    angle = positions[..., None].float() * 10000.0 ** (-torch.arange(half) / half)
    cos, sin = angle.cos()[..., None, :], angle.sin()[..., None, :]
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attend(q: Tensor, k: Tensor, v: Tensor, **how: Tensor | bool) -> Tensor:
    """Attention over (batch, time, heads, size), heads joined again."""
    out = functional.scaled_dot_product_attention(
        q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), **how
    )
    return out.transpose(1, 2).flatten(2)


class Target(nn.Module):
    """The decoder that `model.Target` runs in numpy, with the same names for its weights."""

    def __init__(self, c: TargetConfig) -> None:
        super().__init__()
        self.c = c
        shapes = {"embed": (c.vocabulary, c.width)}
        for n in range(c.layers):
            shapes |= {f"qkv.{n}": (c.width, 3 * c.width), f"out.{n}": (c.width, c.width)}
            shapes |= {f"up.{n}": (c.width, c.inner), f"down.{n}": (c.inner, c.width)}
        self.weights = initialise(shapes, c.layers)

    def forward(self, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """(logits, features) of (batch, time) tokens; features are the middle and the last hidden state."""
        w, c = self.weights, self.c
        positions = torch.arange(tokens.shape[1])
        x = w["embed"][tokens] * math.sqrt(c.width)
        for n in range(c.layers):
            qkv = (norm(x) @ w[f"qkv_{n}"]).unflatten(-1, (3, c.heads, -1))
            q, k = rotate(qkv[:, :, 0], positions), rotate(qkv[:, :, 1], positions)
            x = x + attend(q, k, qkv[:, :, 2], is_causal=True) @ w[f"out_{n}"]
            x = x + (norm(x) @ w[f"up_{n}"]).relu().square() @ w[f"down_{n}"]
            if n + 1 == c.layers // 2:
                middle = x
        return norm(x) @ w["embed"].T, torch.cat([norm(middle), norm(x)], -1)


def initialise(shapes: dict[str, tuple[int, int]], layers: int) -> nn.ParameterDict:
    """Normal weights of deviation 1/sqrt(inputs), less for what is added to the residual stream."""
    made = {}
    for name, shape in shapes.items():
        scale = 0.02 if name == "embed" else shape[0] ** -0.5
        if name.split(".")[0] in ("out", "down"):
            scale /= math.sqrt(2 * layers)
        made[name.replace(".", "_")] = nn.Parameter(torch.randn(shape) * scale)
    return nn.ParameterDict(made)


class Draft(nn.Module):
    """The block drafter that `model.Draft` runs in numpy, with the same names for its weights."""

    def __init__(self, c: DraftConfig, target: TargetConfig) -> None:
        super().__init__()
        self.c = c
        self.weights = initialise(
            {
                "context": (2 * target.width, c.width),
                "token": (target.width, c.width),
                "place": (c.block, c.width),
                "qkv": (c.width, 3 * c.width),
                "out": (c.width, c.width),
                "up": (c.width, c.inner),
                "down": (c.inner, c.width),
                "head": (c.width, target.width),
            },
            1,
        )

    def forward(self, features: Tensor, anchors: Tensor, starts: Tensor, embed: Tensor) -> Tensor:
        """Logits (rows, block, vocabulary); row i sees the features before its anchor's place."""
        w, c = self.weights, self.c
        rows, places, before = len(anchors), torch.arange(c.block), torch.arange(len(features))
        ids = torch.full((rows, c.block), MASK)
        ids[:, 0] = anchors
        x = norm(embed[ids]) @ w["token"] + w["place"]
        _, ck, cv = self._heads(norm(features @ w["context"]), before)
        q, k, v = self._heads(norm(x), starts[:, None] + places)
        k, v = (torch.cat([own.expand(rows, -1, -1, -1), new], 1) for own, new in ((ck, k), (cv, v)))
        seen = torch.cat([before < starts[:, None], torch.ones(rows, c.block, dtype=torch.bool)], 1)
        x = x + attend(q, k, v, attn_mask=seen[:, None, None, :]) @ w["out"]
        x = x + (norm(x) @ w["up"]).relu().square() @ w["down"]
        return norm(x @ w["head"]) @ embed.T

    def _heads(self, x: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        qkv = (x @ self.weights["qkv"]).unflatten(-1, (3, self.c.heads, -1))
        q, k, v = qkv.unbind(-3)
        return rotate(q, positions), rotate(k, positions), v
