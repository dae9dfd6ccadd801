"""Sizes of models are read from their own config.json, and guessed where nothing else is true."""

from collections.abc import Callable

import pytest

from ddtree_ops.model.facts import NodeFacts
from ddtree_ops.plan.preflight import ModelShape
from ddtree_ops.run.models import model_shape

CONFIGS = [
    ("nested", '{"text_config": {"vocab_size": 5, "max_position_embeddings": 7}}', ModelShape(vocab=5, context=7)),
    ("heads", '{"num_attention_heads": 8, "hidden_size": 512}', ModelShape(heads=8, value_dim=64)),
    (
        "own head size", '{"num_attention_heads": 8, "hidden_size": 512, "head_dim": 128}',
        ModelShape(heads=8, value_dim=128),
    ),
    (
        "latent attention", '{"num_attention_heads": 64, "kv_lora_rank": 512, "v_head_dim": 128}',
        ModelShape(heads=64, value_dim=512),
    ),
    ("cut short", "{", ModelShape()),
    ("a list", "[1]", ModelShape()),
]  # fmt: skip


@pytest.mark.parametrize(("text", "expected"), [one[1:] for one in CONFIGS], ids=[one[0] for one in CONFIGS])
def test_sizes_come_from_the_model_s_config(
    text: str, expected: ModelShape, make_facts: Callable[..., NodeFacts]
) -> None:
    assert expected == model_shape(make_facts(model_files=(("config.json", text),)))


def test_a_model_that_could_not_be_read_has_no_sizes(make_facts: Callable[..., NodeFacts]) -> None:
    assert ModelShape() == model_shape(make_facts(model_files=()))
