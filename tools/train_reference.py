"""Trains the reference engine's target and drafter, and writes their directories.

    python tools/train_reference.py [--out DIR] [--only target|draft|draft-again]

Needs torch (CPU, one thread) and ruamel.yaml beside numpy. The same seed on the same machine gives the same
weights; another CPU or torch may differ in the last bits, and the check at the end says whether that matters.
Corpus: `reference_corpus/*.txt` beside this file, all of it written for this purpose, and the long text of
`ddtree_ops/checks/smoke.yaml`. A block is one or more lines `? prompt` and the answer; `«a¦b»` is a choice,
the first taken six times in ten. The target is a decoder of four layers; the drafter fills a block of eight
(the last token and seven masks) from the target's hidden states, and learns what the target itself writes.

The shipped weights were made on 2 shared cores of an AMD EPYC: the target in 19 minutes (about 9 on an idle
core, 0.23 s a step; loss 0.002 to 0.08 at the end, by how many choices the batch holds), the drafter's first
part in 10 (the step then held 128 blocks) and its second in 2, as a run of its own with `--only draft-again`.
All ten smoke prompts were learnt. Longer training of the drafter makes it better than a tree can show.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
import time
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from reference_text import SMOKE, Corpus, train_tokenizer
from reference_torch import Draft, Target

from ddtree_ops.lab.reference.attention import causal_attention
from ddtree_ops.lab.reference.model import DraftConfig, Floats, TargetConfig, read_weights
from ddtree_ops.lab.reference.model import Target as NumpyTarget
from ddtree_ops.lab.reference.tokenizer import END, SPECIALS, Tokenizer

SEED = 20
MODELS = SMOKE.parent.parent / "lab/reference/models"
RATE = 4e-3
BLOCKS = 64  # of one conversation, in a step of the drafter's training
Batch = tuple[Tensor, Tensor]
Written = tuple[Tensor, Tensor, int]  # tokens, features, where the answer begins


def schedule(step: int, steps: int) -> float:
    """Warm-up over 40 steps, then a cosine to 2 %."""
    return min(1.0, (step + 1) / 40) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps)))


class Batches:
    """Batches of (tokens, loss weights): answers weigh 1, everything else a little."""

    def __init__(self, corpus: Corpus, tokenizer: Tokenizer, rows: int, length: int) -> None:
        self.corpus, self.tokenizer, self.rows, self.length = corpus, tokenizer, rows, length

    def mixed(self) -> Batch:
        """Conversations packed one after the other; six rows in ten begin with a whole one."""
        rng, rows = self.corpus.rng, []
        for _ in range(self.rows):
            ids = self.tokenizer.encode(self.corpus.draw())
            start = 0 if rng.random() < 0.6 else rng.randrange(len(ids))
            while len(ids) < start + self.length:
                ids += self.tokenizer.encode(self.corpus.draw())
            rows.append(ids[start : start + self.length])
        return self._weighted(rows)

    def long(self) -> Batch:
        """One conversation about the long text."""
        return self._weighted([self.tokenizer.encode(self.corpus.draw(long=True))])

    def _weighted(self, rows: list[list[int]]) -> Batch:
        tokens = torch.tensor(rows)
        opener = self.tokenizer.encode("<|im_start|>assistant\n")
        weights = torch.full(tokens.shape, 0.1)
        for row, ids in enumerate(rows):
            inside = False
            for at, token in enumerate(ids):
                weights[row, at] = 1.0 if inside else 0.1
                if inside and token == SPECIALS.index("<|im_end|>"):
                    inside = False
                if ids[max(0, at - len(opener) + 1) : at + 1] == opener:
                    inside = True
        return tokens, weights


def train_target(corpus: Corpus, tokenizer: Tokenizer, steps: int) -> Target:
    """The target after `steps` batches; prints its loss as it goes."""
    model = Target(TargetConfig(vocabulary=tokenizer.size))
    batches = Batches(corpus, tokenizer, rows=10, length=224)
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.97), weight_decay=0.01)
    started = time.monotonic()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * schedule(step, steps)
        tokens, weights = batches.long() if step % 8 == 7 else batches.mixed()
        logits, _ = model(tokens[:, :-1])
        losses = functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten(), reduction="none")
        weights = weights[:, 1:].flatten()
        loss = (losses * weights).sum() / weights.sum()
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 50 < 2 or step + 1 == steps:
            print(f"target {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)
    return model


def train_draft(model: Draft, written: list[Written], embed: Tensor, rng: random.Random, steps: int) -> None:
    """`steps` batches of `BLOCKS` blocks, each batch out of one conversation."""
    optimiser = torch.optim.AdamW(model.parameters(), lr=RATE, betas=(0.9, 0.97), weight_decay=0.01)
    decay = 0.85 ** torch.arange(model.c.block - 1)
    started = time.monotonic()
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = RATE * schedule(step, steps)
        tokens, features, first = rng.choice(written)
        starts = torch.tensor([rng.randrange(first, len(tokens) - model.c.block) for _ in range(BLOCKS)])
        goal = torch.stack([tokens[at + 1 : at + model.c.block] for at in starts])
        logits = model(features, tokens[starts], starts, embed)
        losses = functional.cross_entropy(logits[:, 1:].flatten(0, 1), goal.flatten(), reduction="none")
        loss = (losses.view_as(goal) * decay).sum() / decay.sum() / len(starts)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 100 == 0 or step + 1 == steps:
            print(f"draft {step} loss {loss.item():.4f} {time.monotonic() - started:.0f} s", flush=True)


class Writer:
    """The saved target in numpy, as the engine runs it: writes on from a prompt."""

    def __init__(self, out: Path) -> None:
        self.target = NumpyTarget(TargetConfig.read(out / "target"), read_weights(out / "target"))
        self.rng = np.random.default_rng(SEED)

    def write(self, prompt: list[int], temperature: float, limit: int) -> list[int]:
        """Up to `limit` tokens that the target writes after the prompt, its end included."""
        c = self.target.config
        kv = np.zeros((c.layers, len(prompt) + limit, 2, c.heads, c.width // c.heads), np.float32)
        fresh, at, written = prompt, 0, []
        while len(written) < limit and END not in written:
            rows = slice(at, at + len(fresh))

            def attend(layer: int, q: Floats, k: Floats, v: Floats, rows: slice = rows) -> Floats:
                kv[layer, rows, 0], kv[layer, rows, 1] = k, v
                return causal_attention(q, kv[layer, : rows.stop])

            hidden, _ = self.target.forward(np.array(fresh), np.arange(rows.start, rows.stop), attend)
            at, fresh = rows.stop, [self._choose(self.target.logits(hidden[-1:])[0], temperature)]
            written += fresh
        return written

    def _choose(self, logits: Floats, temperature: float) -> int:
        if temperature == 0:
            return int(logits.argmax())
        odds = np.exp((logits - logits.max()).astype(np.float64) / temperature)
        return int(self.rng.choice(len(odds), p=odds / odds.sum()))


@torch.no_grad()
def own_writing(texts: list[str], tokenizer: Tokenizer, target: Target, writer: Writer) -> list[Written]:
    """The conversations with their answers written anew by the target, at T = 0.8."""
    found = []
    for text in texts:
        prompt = tokenizer.encode(text[: text.index("assistant\n") + len("assistant\n")])
        answer = writer.write(prompt, 0.8, 220)
        if len(answer) > 12:
            tokens = torch.tensor([*prompt, *answer, *tokenizer.encode("\n")])
            _, features = target(tokens[None])
            found.append((tokens, features[0], len(prompt)))
    return found


def by_choices(corpus: Corpus) -> list[str]:
    """Each block's conversation 3 times, and 3 times more for each choice in its answer."""
    blocks = [*corpus.smoke, *corpus.general]
    return [corpus.conversation(block) for block in blocks for _ in range(3 + 3 * block[1].count("«"))]


def check(corpus: Corpus, tokenizer: Tokenizer, writer: Writer) -> None:
    """Prints whether the target's greedy answer to each smoke prompt is one that the corpus has."""
    for prompts, answer in corpus.smoke:
        prompt = {"@summary": corpus.summary}.get(prompts[0], prompts[0])
        ids = tokenizer.encode(tokenizer.chat([("user", prompt)]))
        text = tokenizer.decode(writer.write(ids, 0, 400))
        print(f"{'learnt' if corpus.allows(answer, text) else 'NOT LEARNT'}: {prompt[-60:]!r}", flush=True)


def save(directory: Path, weights: nn.ParameterDict, config: TargetConfig | DraftConfig) -> None:
    """Weights as fp16 model.npz and the configuration as config.json, under Hugging Face's names."""
    directory.mkdir(parents=True, exist_ok=True)
    arrays = {name: value.detach().numpy().astype(np.float16) for name, value in weights.items()}
    np.savez_compressed(directory / "model.npz", **arrays)
    names = {
        "hidden_size": config.width,
        "num_attention_heads": config.heads,
        "intermediate_size": config.inner,
    }
    if isinstance(config, TargetConfig):
        names |= {"vocab_size": config.vocabulary, "num_hidden_layers": config.layers}
        names |= {"max_position_embeddings": config.context}
        described = {"architectures": ["ReferenceForCausalLM"], "model_type": "reference", **names}
    else:
        names |= {"block_size": config.block, "num_hidden_layers": 1}
        described = {"architectures": ["ReferenceDFlashDraft"], "model_type": "reference_dflash", **names}
    (directory / "config.json").write_text(json.dumps(described, indent=1) + "\n")


def load_target(out: Path) -> Target:
    """The target as it was saved, in fp16 precision."""
    target = Target(TargetConfig.read(out / "target"))
    load_into(target.weights, out / "target")
    return target


def load_into(weights: nn.ParameterDict, directory: Path) -> None:
    """Replaces weights by those that were saved."""
    for name, array in read_weights(directory).items():
        weights[name].data.copy_(torch.from_numpy(array))


def main() -> None:
    """Trains what the command line asks for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=MODELS)
    parser.add_argument("--only", choices=("target", "draft", "draft-again"))
    parser.add_argument("--steps", type=int, default=2400)
    parser.add_argument("--draft-steps", type=int, nargs=2, default=(2500, 600))
    args = parser.parse_args()
    torch.manual_seed(SEED)
    torch.set_num_threads(1)
    corpus = Corpus(random.Random(SEED))
    if args.only in (None, "target"):
        texts = [corpus.draw(long=n % 8 == 0) for n in range(400)]
        texts += [corpus.resolve(answer) for _, answer in (corpus.smoke + corpus.general) * 5]
        (args.out / "target").mkdir(parents=True, exist_ok=True)
        tokenizer = train_tokenizer(texts)
        tokenizer.save(args.out / "target")
        target = train_target(corpus, tokenizer, args.steps)
        save(args.out / "target", target.weights, target.c)
    if args.only != "target":
        make_draft(corpus, args.out, args.draft_steps, again=args.only == "draft-again")
    check(corpus, Tokenizer.load(args.out / "target"), Writer(args.out))


def make_draft(corpus: Corpus, out: Path, steps: tuple[int, int], *, again: bool) -> None:
    """The drafter in two parts: what the corpus draws, then (alone if `again`) what has many choices."""
    tokenizer, writer, target = Tokenizer.load(out / "target"), Writer(out), load_target(out)
    draft, embed = Draft(DraftConfig(), target.c), target.weights["embed"].detach()
    if again:
        load_into(draft.weights, out / "draft")
    else:
        texts = [corpus.draw(long=n % 20 == 0) for n in range(300)]
        train_draft(draft, own_writing(texts, tokenizer, target, writer), embed, corpus.rng, steps[0])
    written = own_writing(by_choices(corpus), tokenizer, target, writer)
    train_draft(draft, written, embed, corpus.rng, steps[1])
    save(out / "draft", draft.weights, draft.c)


if __name__ == "__main__":
    main()
