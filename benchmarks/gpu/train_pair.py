"""Trains a small target and DFlash drafter that know the smoke gate's answers, in the form that SGLang loads.

    python benchmarks/gpu/train_pair.py OUT [--steps 1500] [--draft-steps 1200]

Plain torch, bf16 weights, about two minutes on an H200. The corpus is the reference engine's
(`tools/reference_corpus`): a Qwen3 target learns its conversations, the drafter learns to fill blocks from
the target's hidden states. Writes OUT/target, OUT/draft and OUT/prompts.json, and says at the end which of
the smoke prompts the target answers as the corpus does.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as nn
from safetensors.torch import save_file
from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor

HOME = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(HOME), str(HOME / "tools")]

from reference_text import Corpus  # noqa: E402

from ddtree_ops.lab.reference.tokenizer import SPECIALS  # noqa: E402

END, MASK = "<|im_end|>", "<|mask|>"
ASKED = "<|im_start|>assistant\n"
CHAT = HOME / "ddtree_ops/lab/reference/models/target/chat_template.jinja"
VOCABULARY, HIDDEN, INNER, HEADS, KEYS, HEAD = 1536, 256, 768, 4, 2, 64
LAYERS, DRAFT_LAYERS, BLOCK, TAKEN = 6, 3, 8, (1, 2, 3)
THETA, EPSILON, CONTEXT = 1e6, 1e-6, 8192
Weights = dict[str, Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("out", type=Path)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--draft-steps", type=int, default=1200)
    parser.add_argument("--rows", type=int, default=16)
    parser.add_argument("--length", type=int, default=1536, help="tokens a row; the long prompt needs 1,300")
    parser.add_argument("--conversations", type=int, default=4000)
    parser.add_argument("--rate", type=float, default=2e-3)
    args = parser.parse_args()
    torch.manual_seed(20)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    corpus = Corpus(random.Random(20))
    texts = [corpus.draw(long=number % 8 == 0) for number in range(args.conversations)]
    tokenizer = make_tokenizer(texts)
    rows = Rows(texts, tokenizer, args, device)
    target = initial(target_shapes(), LAYERS, device)
    train(target, args.steps, args.rate, lambda: target_loss(target, rows.batch()), "target")
    save_target(args.out, target, tokenizer, corpus)
    draft = initial(draft_shapes(), DRAFT_LAYERS, device)
    mask = tokenizer.token_to_id(MASK)
    train(draft, args.draft_steps, args.rate, lambda: draft_loss(draft, target, rows.batch(), mask), "draft")
    save_draft(args.out, draft, mask, tokenizer.token_to_id(END))
    check(corpus, tokenizer, target)


def make_tokenizer(texts: list[str]) -> Tokenizer:
    """Byte-level BPE with the chat's special tokens first."""
    tokenizer = Tokenizer(models.BPE())
    split = pre_tokenizers.Split(Regex(r"\n[ \n]*| ?[^\W\d_]+|\d| ?[^\w\s]+|_|\s"), "isolated")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIALS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


@dataclass(frozen=True)
class Batch:
    """Rows of whole conversations, [rows, length]; a token sees its own conversation alone."""

    ids: Tensor
    owner: Tensor  # the conversation's number in its row
    answer: Tensor  # bool: the token belongs to an answer

    @property
    def seen(self) -> Tensor:
        """[rows, 1, length, length]: what each position attends to."""
        length = self.ids.shape[1]
        before = torch.ones(length, length, dtype=torch.bool, device=self.ids.device).tril()
        return (before & (self.owner[:, :, None] == self.owner[:, None]))[:, None]


class Rows:
    """Draws batches from the tokenised conversations, which all lie on the device."""

    def __init__(self, texts: list[str], tokenizer: Tokenizer, args: argparse.Namespace, device: str) -> None:
        self._rows = args.rows
        packed: list[list[tuple[int, int, bool]]] = [[]]
        for number, text in enumerate(texts):
            asked, answer = text.split(ASKED, 1)
            question = tokenizer.encode(asked + ASKED).ids
            told = tokenizer.encode(answer).ids
            tokens = [(one, number, False) for one in question] + [(one, number, True) for one in told]
            if len(packed[-1]) + len(tokens) > args.length:
                packed.append([])
            packed[-1] += tokens[: args.length]
        rest = [(0, -1, False)]
        table = torch.tensor([row + rest * (args.length - len(row)) for row in packed], device=device)
        self._ids, self._owner, self._answer = table[..., 0], table[..., 1], table[..., 2].bool()

    def batch(self) -> Batch:
        chosen = torch.randint(len(self._ids), (self._rows,), device=self._ids.device)
        return Batch(ids=self._ids[chosen], owner=self._owner[chosen], answer=self._answer[chosen])


def layer_shapes(name: str) -> dict[str, tuple[int, ...]]:
    return {
        f"{name}.self_attn.q_proj.weight": (HEADS * HEAD, HIDDEN),
        f"{name}.self_attn.k_proj.weight": (KEYS * HEAD, HIDDEN),
        f"{name}.self_attn.v_proj.weight": (KEYS * HEAD, HIDDEN),
        f"{name}.self_attn.o_proj.weight": (HIDDEN, HEADS * HEAD),
        f"{name}.self_attn.q_norm.weight": (HEAD,),
        f"{name}.self_attn.k_norm.weight": (HEAD,),
        f"{name}.mlp.gate_proj.weight": (INNER, HIDDEN),
        f"{name}.mlp.up_proj.weight": (INNER, HIDDEN),
        f"{name}.mlp.down_proj.weight": (HIDDEN, INNER),
        f"{name}.input_layernorm.weight": (HIDDEN,),
        f"{name}.post_attention_layernorm.weight": (HIDDEN,),
    }


def target_shapes() -> dict[str, tuple[int, ...]]:
    ends = {"embed_tokens.weight": (VOCABULARY, HIDDEN), "norm.weight": (HIDDEN,)}
    layers = [layer_shapes(f"layers.{number}") for number in range(LAYERS)]
    inner = {name: shape for part in (ends, *layers) for name, shape in part.items()}
    return {f"model.{name}": shape for name, shape in inner.items()} | {
        "lm_head.weight": (VOCABULARY, HIDDEN)
    }


def draft_shapes() -> dict[str, tuple[int, ...]]:
    ends = {"fc.weight": (HIDDEN, len(TAKEN) * HIDDEN), "hidden_norm.weight": (HIDDEN,)}
    layers = [layer_shapes(f"layers.{number}") for number in range(DRAFT_LAYERS)]
    return {name: shape for part in (ends, *layers) for name, shape in part.items()} | {
        "norm.weight": (HIDDEN,)
    }


def initial(shapes: dict[str, tuple[int, ...]], layers: int, device: str) -> Weights:
    """Ones for norms, small normal weights else; smaller still for what is added to the residual."""
    made = {}
    for name, shape in shapes.items():
        added = name.endswith(("o_proj.weight", "down_proj.weight"))
        scale = 0.02 / math.sqrt(2 * layers) if added else 0.02
        value = torch.ones(shape) if len(shape) == 1 else torch.randn(shape) * scale
        made[name] = value.to(device).requires_grad_()
    return made


def norm(x: Tensor, weight: Tensor) -> Tensor:
    full = x.float()
    return (full * torch.rsqrt(full.pow(2).mean(-1, keepdim=True) + EPSILON) * weight).to(x.dtype)


def turn(x: Tensor, positions: Tensor) -> Tensor:
    """Rotary embedding of [rows, heads, tokens, HEAD] at positions [rows, tokens]."""
    pairs = torch.arange(0, HEAD, 2, device=x.device).float() / HEAD
    angle = positions[:, None, :, None].float() / THETA**pairs
    cos, sin = angle.cos(), angle.sin()
    one, other = x.float().chunk(2, -1)
    return torch.cat([one * cos - other * sin, other * cos + one * sin], -1).to(x.dtype)


@dataclass(frozen=True)
class Context:
    """What a drafter's layer attends to beside its own block."""

    states: Tensor  # [rows, length, HIDDEN]
    positions: Tensor


def layer(
    w: Weights, name: str, x: Tensor, positions: Tensor, seen: Tensor, context: Context | None = None
) -> Tensor:
    """One Qwen3 layer on [rows, tokens, HIDDEN]."""
    before = norm(x, w[f"{name}.input_layernorm.weight"])
    both, places = before, positions
    if context is not None:
        both = torch.cat([context.states.to(before.dtype), before], 1)
        places = torch.cat([context.positions, positions], 1)
    at = f"{name}.self_attn."
    query, key, value = (
        (states @ w[f"{at}{kind}_proj.weight"].T).unflatten(-1, (-1, HEAD)).transpose(1, 2)
        for kind, states in (("q", before), ("k", both), ("v", both))
    )
    query = turn(norm(query, w[f"{at}q_norm.weight"]), positions)
    key = turn(norm(key, w[f"{at}k_norm.weight"]), places)
    key, value = (one.repeat_interleave(HEADS // KEYS, 1) for one in (key, value))
    out = nn.scaled_dot_product_attention(query, key, value, attn_mask=seen)
    x = x + out.transpose(1, 2).flatten(2) @ w[f"{at}o_proj.weight"].T
    inner = norm(x, w[f"{name}.post_attention_layernorm.weight"])
    gate, up = (inner @ w[f"{name}.mlp.{kind}_proj.weight"].T for kind in ("gate", "up"))
    return x + (nn.silu(gate) * up) @ w[f"{name}.mlp.down_proj.weight"].T


def read(w: Weights, ids: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
    """The target's (last hidden states, features for the drafter)."""
    positions = torch.arange(ids.shape[1], device=ids.device).expand(len(ids), -1)
    x, taken = w["model.embed_tokens.weight"][ids], []
    for number in range(LAYERS):
        x = layer(w, f"model.layers.{number}", x, positions, seen)
        taken += [x] if number in TAKEN else []
    return norm(x, w["model.norm.weight"]), torch.cat(taken, -1)


def target_loss(w: Weights, batch: Batch) -> Tensor:
    """Next-token loss: answers weigh 1, what is asked a tenth, what follows another conversation nothing."""
    hidden, _ = read(w, batch.ids, batch.seen)
    logits = (hidden[:, :-1] @ w["lm_head.weight"].T).float()
    same = (batch.owner[:, 1:] == batch.owner[:, :-1]) & (batch.owner[:, 1:] >= 0)
    weights = same * torch.where(batch.answer[:, 1:], 1.0, 0.1)
    losses = nn.cross_entropy(logits.flatten(0, 1), batch.ids[:, 1:].flatten(), reduction="none")
    return (losses * weights.flatten()).sum() / weights.sum()


def draft_loss(w: Weights, target: Weights, batch: Batch, mask: int, blocks: int = 48) -> Tensor:
    """Loss over blocks that begin at random answer tokens; nearer positions weigh more."""
    rows, length = batch.ids.shape
    with torch.no_grad():
        _, features = read(target, batch.ids, batch.seen)
    whole = batch.answer[:, : length - BLOCK] & (batch.owner[:, BLOCK:] == batch.owner[:, : length - BLOCK])
    starts = torch.multinomial(whole.float() + 1e-9, blocks)
    places = (starts[..., None] + torch.arange(BLOCK, device=starts.device)).flatten(1)
    wanted = batch.ids.gather(1, places).view(rows, blocks, BLOCK)
    ids = torch.full_like(wanted, mask)
    ids[..., 0] = wanted[..., 0]
    states, positions = context_of(w, features)
    own = torch.arange(blocks, device=starts.device).repeat_interleave(BLOCK)
    first = starts.repeat_interleave(BLOCK, 1)[..., None]
    owner = batch.owner.gather(1, starts).repeat_interleave(BLOCK, 1)[..., None]
    past = (positions[:, None] < first) & (batch.owner[:, None] == owner)
    seen = torch.cat([past, (own[:, None] == own).expand(rows, -1, -1)], -1)[:, None]
    hidden = propose(w, target, ids.flatten(1), places, seen, Context(states, positions))
    logits = (hidden.view(rows, blocks, BLOCK, HIDDEN)[:, :, 1:] @ target["lm_head.weight"].T).float()
    losses = nn.cross_entropy(logits.flatten(0, 2), wanted[..., 1:].flatten(), reduction="none")
    fade = 0.8 ** torch.arange(BLOCK - 1, device=starts.device)
    return (losses.view(-1, BLOCK - 1) * fade).mean()


def context_of(w: Weights, features: Tensor) -> tuple[Tensor, Tensor]:
    states = norm(features @ w["fc.weight"].T, w["hidden_norm.weight"])
    return states, torch.arange(features.shape[1], device=features.device).expand(len(features), -1)


def propose(
    w: Weights, target: Weights, ids: Tensor, positions: Tensor, seen: Tensor, context: Context
) -> Tensor:
    x = target["model.embed_tokens.weight"].detach()[ids]
    for number in range(DRAFT_LAYERS):
        x = layer(w, f"layers.{number}", x, positions, seen, context)
    return norm(x, w["norm.weight"])


def train(weights: Weights, steps: int, rate: float, loss_of: Any, name: str) -> None:
    optimiser = torch.optim.AdamW(weights.values(), lr=rate, betas=(0.9, 0.95), weight_decay=0.01)
    began, device = time.monotonic(), next(iter(weights.values())).device.type
    for step in range(steps):
        warm, rest = min(1.0, (step + 1) / 50), 0.5 * (1 + math.cos(math.pi * step / steps))
        optimiser.param_groups[0]["lr"] = rate * warm * (0.02 + 0.98 * rest)
        with torch.autocast(device, torch.bfloat16):
            loss = loss_of()
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights.values(), 1.0)
        optimiser.step()
        if step % 200 == 0 or step + 1 == steps:
            print(f"{name} {step} loss {loss.item():.4f} {time.monotonic() - began:.0f} s", flush=True)
    for weight in weights.values():
        weight.requires_grad_(requires_grad=False)
        weight.data = weight.data.bfloat16().float()  # as it is saved


SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": HIDDEN,
    "intermediate_size": INNER,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KEYS,
    "head_dim": HEAD,
    "hidden_act": "silu",
    "max_position_embeddings": CONTEXT,
    "rms_norm_eps": EPSILON,
    "rope_theta": THETA,
    "attention_bias": False,
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "model_type": "qwen3",
}


def save_target(out: Path, weights: Weights, tokenizer: Tokenizer, corpus: Corpus) -> None:
    home = out / "target"
    home.mkdir(parents=True, exist_ok=True)
    end = tokenizer.token_to_id(END)
    shape = SHAPE | {
        "architectures": ["Qwen3ForCausalLM"],
        "num_hidden_layers": LAYERS,
        "layer_types": ["full_attention"] * LAYERS,
        "rope_parameters": {"rope_type": "default", "rope_theta": THETA},
        "bos_token_id": end,
        "eos_token_id": end,
    }
    _save(home, weights, shape)
    (home / "generation_config.json").write_text(json.dumps({"eos_token_id": end, "bos_token_id": end}))
    tokenizer.save(str(home / "tokenizer.json"))
    named = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": END, "model_max_length": CONTEXT}
    (home / "tokenizer_config.json").write_text(json.dumps(named | {"chat_template": CHAT.read_text()}))
    (home / "chat_template.jinja").write_text(CHAT.read_text())
    prompts = [tokenizer.encode(one).ids for one in _asked(corpus).values()]
    (out / "prompts.json").write_text(json.dumps({"prompts": prompts}))


def save_draft(out: Path, weights: Weights, mask: int, end: int) -> None:
    home = out / "draft"
    home.mkdir(parents=True, exist_ok=True)
    shape = SHAPE | {
        "architectures": ["DFlashDraftModel"],
        "num_hidden_layers": DRAFT_LAYERS,
        "rope_scaling": None,
        "bos_token_id": end,
        "eos_token_id": end,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"mask_token_id": mask, "target_layer_ids": list(TAKEN)},
    }
    _save(home, weights, shape)


def _save(home: Path, weights: Weights, shape: dict[str, Any]) -> None:
    tensors = {name: value.detach().bfloat16().contiguous().cpu() for name, value in weights.items()}
    save_file(tensors, home / "model.safetensors", metadata={"format": "pt"})
    (home / "config.json").write_text(json.dumps(shape, indent=1))


def _asked(corpus: Corpus) -> dict[str, str]:
    """Smoke answers' prompts, as the chat template makes them, by the answer that the corpus has."""
    asked = {}
    for prompts, answer in corpus.smoke:
        prompt = {"@summary": corpus.summary}.get(prompts[0], prompts[0])
        asked[answer] = f"<|im_start|>user\n{prompt}{END}\n{ASKED}"
    return asked


def check(corpus: Corpus, tokenizer: Tokenizer, weights: Weights, most: int = 400) -> None:
    """Prints whether the target's greedy answer to each smoke prompt is one that the corpus has."""
    end, device = tokenizer.token_to_id(END), weights["lm_head.weight"].device
    for answer, asked in _asked(corpus).items():
        ids = torch.tensor([tokenizer.encode(asked).ids], device=device)
        start = ids.shape[1]
        with torch.no_grad(), torch.autocast(device.type, torch.bfloat16):
            while ids.shape[1] < start + most and (ids.shape[1] == start or ids[0, -1] != end):
                whole = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=device).tril()
                hidden, _ = read(weights, ids, whole)
                ids = torch.cat([ids, (hidden[:, -1:] @ weights["lm_head.weight"].T).argmax(-1)], 1)
        text = tokenizer.decode(ids[0, start:].tolist())
        told = "learnt" if Corpus.allows(answer, text) else f"NOT LEARNT, {text!r}"
        print(f"{asked[-70:-30]!r}: {told}", flush=True)


if __name__ == "__main__":
    main()
