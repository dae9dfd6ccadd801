"""What a node's models say of themselves in their config.json, as far as it read them."""

from __future__ import annotations

import json
from typing import Any

from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.plan.preflight import ModelShape
from ddtree_ops.run.context import NodeRun

BLOCK = 16  # what DFLASH assumes when the drafter's config names no block size


def model_shape(facts: NodeFacts) -> ModelShape:
    """The sizes that a graph's buffers depend on; None for what the node could not read."""
    config = _config(facts)
    text = config.get("text_config", config)  # models that see keep their language part there

    def size(*names: str) -> int | None:
        return next((text[name] for name in names if isinstance(text.get(name), int)), None)

    heads, hidden = size("num_attention_heads"), size("hidden_size")
    per_head = hidden // heads if hidden and heads else None
    return ModelShape(
        vocab=size("vocab_size"),
        context=size("max_position_embeddings"),
        heads=heads,
        value_dim=size("kv_lora_rank", "v_head_dim", "head_dim") or per_head,  # MLA caches its latent
    )


def drafter_block(run: NodeRun, drafter: str | None) -> int:
    """The drafter's block size, by its own config.json where the node has that file."""
    if drafter is None or not drafter.startswith("/"):
        return BLOCK
    config = _config(run.node.probe(venv="", model=drafter))
    for part in (config, config.get("dflash_config")):
        size = part.get("block_size") if isinstance(part, dict) else None
        if isinstance(size, int) and size > 1:
            return size
    return BLOCK


def _config(facts: NodeFacts) -> dict[str, Any]:
    try:
        config = json.loads(dict(facts.model_files).get("config.json", "{}"))
    except ValueError:
        return {}
    return config if isinstance(config, dict) else {}
