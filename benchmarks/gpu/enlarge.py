"""Pads a small trained pair to a large one that computes the same function, for timing.

The trained layers stay first, their vectors padded with zeros to --hidden; further layers have random
weights and zero output projections, so they cost a layer's time and change nothing. Norm weights and
epsilon are scaled so that padded norms equal the trained ones; with a width ratio that is a power of four
the scaling is exact. Ids and acceptance are therefore the small pair's, up to rounding: figures from such a
pair say what steps cost, and say so.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

NORMS = ("input_layernorm", "post_attention_layernorm", "hidden_norm", "model.norm", "norm.weight")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("source", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--hidden", type=int, default=4096)
    parser.add_argument("--layers", type=int, default=44)
    parser.add_argument("--intermediate", type=int, default=13696)
    args = parser.parse_args()
    target = json.loads((args.source / "target" / "config.json").read_text())
    ratio = args.hidden // target["hidden_size"]
    count = _target(args, target, ratio)
    _draft(args, target["hidden_size"], ratio)
    shutil.copy(args.source / "prompts.json", args.out)
    print(f"{count / 1e9:.2f} B parameters in {args.out / 'target'}")


def _target(args: argparse.Namespace, config: dict[str, Any], ratio: int) -> int:
    out = args.out / "target"
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", "tokenizer_config.json", "generation_config.json"):
        shutil.copy(args.source / "target" / name, out)
    small, trained = load_file(args.source / "target" / "model.safetensors"), config["num_hidden_layers"]
    head, group = config["head_dim"], config["num_attention_heads"] // config["num_key_value_heads"]
    config = {
        **config,
        "hidden_size": args.hidden,
        "num_hidden_layers": args.layers,
        "intermediate_size": args.intermediate,
        "num_attention_heads": args.hidden // head,
        "num_key_value_heads": args.hidden // head // group,
        "rms_norm_eps": config["rms_norm_eps"] / ratio,
        "layer_types": ["full_attention"] * args.layers,
        "max_window_layers": args.layers,
    }
    (out / "config.json").write_text(json.dumps(config, indent=1))
    spare = _layer(config, small)
    index: dict[str, str] = {}
    total = 0
    for number in range(args.layers):
        prefix = f"model.layers.{number}."
        layer = {prefix + name: value for name, value in spare.items()}
        if number < trained:
            layer = {name: _padded(name, small[name], value, ratio) for name, value in layer.items()}
        total += _save(out, f"layer-{number:03d}.safetensors", layer, index)
    ends = {name: _wide(small[name], args.hidden) for name in small if ".layers." not in name}
    total += _save(
        out, "ends.safetensors", {k: _padded(k, small[k], v, ratio) for k, v in ends.items()}, index
    )
    (out / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": index}))
    return total


def _layer(config: dict[str, Any], small: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """One layer that changes nothing: random inputs, zero outputs."""
    hidden, inner, head = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    key = config["num_key_value_heads"] * head
    shapes = {
        "self_attn.q_proj.weight": (config["num_attention_heads"] * head, hidden),
        "self_attn.k_proj.weight": (key, hidden),
        "self_attn.v_proj.weight": (key, hidden),
        "mlp.gate_proj.weight": (inner, hidden),
        "mlp.up_proj.weight": (inner, hidden),
    }
    device = "cuda" if torch.cuda.is_available() else "cpu"
    layer = {
        name: (torch.randn(shape, device=device) * 0.02).bfloat16().cpu() for name, shape in shapes.items()
    }
    layer["self_attn.o_proj.weight"] = torch.zeros(hidden, config["num_attention_heads"] * head).bfloat16()
    layer["mlp.down_proj.weight"] = torch.zeros(hidden, inner).bfloat16()
    for name in ("input_layernorm.weight", "post_attention_layernorm.weight"):
        layer[name] = torch.ones(hidden).bfloat16()
    for name in ("self_attn.q_norm.weight", "self_attn.k_norm.weight"):
        layer[name] = small[f"model.layers.0.{name}"].clone()
    return layer


def _wide(value: torch.Tensor, hidden: int) -> torch.Tensor:
    return torch.zeros(hidden if value.dim() == 1 else (value.shape[0], hidden), dtype=value.dtype)


def _padded(name: str, small: torch.Tensor, large: torch.Tensor, ratio: int) -> torch.Tensor:
    """The trained block in the corner of zeros; norms over the residual scaled to their wider vectors."""
    if "k_norm" in name or "q_norm" in name:
        return small.clone()
    result = torch.zeros_like(large)
    scale = 1 / math.sqrt(ratio) if any(word in name for word in NORMS) else 1.0
    result[tuple(slice(0, size) for size in small.shape)] = small * scale
    return result


def _save(out: Path, name: str, tensors: dict[str, torch.Tensor], index: dict[str, str]) -> int:
    save_file(
        {key: value.contiguous() for key, value in tensors.items()}, out / name, metadata={"format": "pt"}
    )
    index.update(dict.fromkeys(tensors, name))
    return sum(value.numel() for value in tensors.values())


def _draft(args: argparse.Namespace, hidden: int, ratio: int) -> None:
    """The drafter keeps its own width inside; only what meets the residual grows."""
    out = args.out / "draft"
    out.mkdir(parents=True, exist_ok=True)
    config = json.loads((args.source / "draft" / "config.json").read_text())
    config |= {"hidden_size": args.hidden, "num_target_layers": args.layers}
    config["rms_norm_eps"] /= ratio
    (out / "config.json").write_text(json.dumps(config, indent=1))
    small = load_file(args.source / "draft" / "model.safetensors")
    large = {name: _wider(name, value, hidden, args.hidden, ratio) for name, value in small.items()}
    save_file(large, out / "model.safetensors", metadata={"format": "pt"})


def _wider(name: str, value: torch.Tensor, hidden: int, wide: int, ratio: int) -> torch.Tensor:
    if "q_norm" in name or "k_norm" in name:
        return value
    if name == "fc.weight":  # features of several target layers side by side
        layers = value.shape[1] // hidden
        result = torch.zeros(wide, layers, wide, dtype=value.dtype)
        result[:hidden, :, :hidden] = value.view(hidden, layers, hidden)
        return result.view(wide, layers * wide)
    if value.dim() == 1:
        return _padded(name, value, torch.zeros(wide, dtype=value.dtype), ratio)
    rows = wide if name.endswith(("o_proj.weight", "down_proj.weight")) else value.shape[0]
    columns = value.shape[1] if name.endswith(("o_proj.weight", "down_proj.weight")) else wide
    return _padded(name, value, torch.zeros(rows, columns, dtype=value.dtype), ratio)


if __name__ == "__main__":
    main()
