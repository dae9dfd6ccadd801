"""SGLang's launch flags, as far as this engine acts on them or tolerates them."""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

DRAFT_TOKENS = 16  # what DFLASH assumes when the drafter's config names no block size
SPECULATIVE_REQUESTS = 48  # DFLASH's default for max_running_requests
CAPACITY = 36_864  # tokens of KV at a memory fraction of 1


@dataclass
class ServerArgs:
    """The values of the flags; what `/server_info` shows."""

    model_path: str
    tokenizer_path: str | None = None
    served_model_name: str | None = None
    trust_remote_code: bool = False
    host: str = "127.0.0.1"
    port: int = 30000
    tp_size: int = 1
    context_length: int | None = None
    mem_fraction_static: float | None = None
    max_running_requests: int | None = None
    max_total_tokens: int | None = None
    chunked_prefill_size: int | None = None
    page_size: int = 1
    attention_backend: str | None = None
    disable_cuda_graph: bool = False
    cuda_graph_max_bs: int | None = None
    disable_radix_cache: bool = False
    speculative_algorithm: str | None = None
    speculative_draft_model_path: str | None = None
    speculative_num_steps: int | None = None
    speculative_eagle_topk: int | None = None
    speculative_num_draft_tokens: int | None = None
    speculative_dflash_block_size: int | None = None
    speculative_ddtree_budget: int | None = None
    speculative_ddtree_topk_cap: int | None = None
    enable_metrics: bool = False
    log_level: str = "info"
    log_requests: bool = False
    decode_log_interval: int = 40
    stream_interval: int = 1
    random_seed: int | None = None
    watchdog_timeout: float = 300
    skip_server_warmup: bool = False
    dtype: str = "auto"
    quantization: str | None = None
    kv_cache_dtype: str = "auto"
    load_format: str = "auto"
    dist_init_addr: str | None = None
    nnodes: int = 1
    node_rank: int = 0
    dp_size: int = 1
    ep_size: int = 1
    pp_size: int = 1
    schedule_policy: str = "fcfs"
    reasoning_parser: str | None = None
    tool_call_parser: str | None = None
    moe_runner_backend: str = "auto"
    sampling_backend: str | None = None
    enable_cache_report: bool = False
    api_key: str | None = None
    disable_overlap_schedule: bool = False
    disable_custom_all_reduce: bool = False
    speculative_draft_model_quantization: str | None = None
    speculative_draft_attention_backend: str | None = None

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        """Declares the flags."""
        parser.add_argument("--model-path", "--model", type=str, required=True)
        parser.add_argument("--tokenizer-path", type=str)
        parser.add_argument("--served-model-name", type=str)
        parser.add_argument("--trust-remote-code", action="store_true")
        parser.add_argument("--host", type=str, default=ServerArgs.host)
        parser.add_argument("--port", type=int, default=ServerArgs.port)
        parser.add_argument(
            "--tensor-parallel-size", "--tp-size", "--tp", dest="tp_size", type=int, default=1
        )
        parser.add_argument("--context-length", type=int)
        parser.add_argument("--mem-fraction-static", type=float)
        parser.add_argument("--max-running-requests", type=int)
        parser.add_argument("--max-total-tokens", type=int)
        parser.add_argument("--chunked-prefill-size", type=int)
        parser.add_argument("--page-size", type=int, default=ServerArgs.page_size)
        parser.add_argument("--attention-backend", type=str)
        parser.add_argument("--disable-cuda-graph", action="store_true")
        parser.add_argument("--cuda-graph-max-bs", type=int)
        parser.add_argument("--disable-radix-cache", action="store_true")
        parser.add_argument("--speculative-algorithm", type=str, choices=["DFLASH"])
        parser.add_argument("--speculative-draft-model-path", "--speculative-draft-model", type=str)
        parser.add_argument("--speculative-num-steps", type=int)
        parser.add_argument("--speculative-eagle-topk", type=int)
        parser.add_argument("--speculative-num-draft-tokens", type=int)
        parser.add_argument("--speculative-dflash-block-size", type=int)
        parser.add_argument("--speculative-ddtree-budget", type=int)
        parser.add_argument("--speculative-ddtree-topk-cap", type=int)
        parser.add_argument("--enable-metrics", action="store_true")
        parser.add_argument("--api-key", type=str)
        ServerArgs._add_tolerated(parser)

    @staticmethod
    def _add_tolerated(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--log-level", type=str, default=ServerArgs.log_level)
        parser.add_argument("--log-requests", action="store_true")
        parser.add_argument("--decode-log-interval", type=int, default=ServerArgs.decode_log_interval)
        parser.add_argument("--stream-interval", type=int, default=ServerArgs.stream_interval)
        parser.add_argument("--random-seed", type=int)
        parser.add_argument("--watchdog-timeout", type=float, default=ServerArgs.watchdog_timeout)
        parser.add_argument("--skip-server-warmup", action="store_true")
        parser.add_argument("--dtype", type=str, default=ServerArgs.dtype)
        parser.add_argument("--quantization", type=str)
        parser.add_argument("--kv-cache-dtype", type=str, default=ServerArgs.kv_cache_dtype)
        parser.add_argument("--load-format", type=str, default=ServerArgs.load_format)
        parser.add_argument("--dist-init-addr", type=str)
        parser.add_argument("--nnodes", type=int, default=ServerArgs.nnodes)
        parser.add_argument("--node-rank", type=int, default=ServerArgs.node_rank)
        parser.add_argument("--data-parallel-size", "--dp-size", "--dp", dest="dp_size", type=int, default=1)
        parser.add_argument(
            "--expert-parallel-size", "--ep-size", "--ep", dest="ep_size", type=int, default=1
        )
        parser.add_argument("--pipeline-parallel-size", "--pp-size", dest="pp_size", type=int, default=1)
        parser.add_argument("--schedule-policy", type=str, default=ServerArgs.schedule_policy)
        parser.add_argument("--reasoning-parser", type=str)
        parser.add_argument("--tool-call-parser", type=str)
        parser.add_argument("--moe-runner-backend", type=str, default=ServerArgs.moe_runner_backend)
        parser.add_argument("--sampling-backend", type=str)
        parser.add_argument("--enable-cache-report", action="store_true")
        parser.add_argument("--disable-overlap-schedule", action="store_true")
        parser.add_argument("--disable-custom-all-reduce", action="store_true")
        parser.add_argument("--speculative-draft-model-quantization", type=str)
        parser.add_argument("--speculative-draft-attention-backend", type=str)

    @classmethod
    def from_cli(cls, argv: Sequence[str]) -> ServerArgs:
        """The arguments of a command line, with the values that follow from others filled in.

        Exits with status 2 and argparse's message on what argparse rejects; raises ValueError on
        combinations that the engine rejects, as SGLang does.
        """
        parser = argparse.ArgumentParser(prog="launch_server.py", allow_abbrev=False)
        cls.add_cli_args(parser)
        args = cls(**vars(parser.parse_args(argv)))
        args.settle()
        return args

    def settle(self) -> None:
        """Fills in what follows from other flags and rejects what cannot run."""
        config = self._config("model_path", self.model_path)
        self.tokenizer_path = self.tokenizer_path or self.model_path
        self.served_model_name = self.served_model_name or self.model_path
        self.attention_backend = self.attention_backend or "triton"
        self.mem_fraction_static = self.mem_fraction_static or 0.88
        self.chunked_prefill_size = self.chunked_prefill_size or 2048
        limit = int(config["max_position_embeddings"])
        self.context_length = self.context_length or limit
        if self.context_length > limit:
            raise ValueError(
                f"User-specified context_length ({self.context_length}) is greater than the derived "
                f"context_length ({limit})."
            )
        if self.random_seed is None:
            self.random_seed = random.SystemRandom().randrange(1 << 30)
        self._settle_speculation(int(config["vocab_size"]))
        self.max_running_requests = self.max_running_requests or SPECULATIVE_REQUESTS
        self.cuda_graph_max_bs = self.cuda_graph_max_bs or min(8, self.max_running_requests)

    def _settle_speculation(self, vocabulary: int) -> None:
        budget, cap = self.speculative_ddtree_budget, self.speculative_ddtree_topk_cap
        if self.speculative_algorithm is None:
            if budget is not None or cap is not None:
                raise ValueError("--speculative-ddtree-budget requires --speculative-algorithm DFLASH.")
            return
        if self.speculative_draft_model_path is None:
            raise ValueError("DFLASH speculative decoding requires setting --speculative-draft-model-path.")
        if budget is not None and budget < 1:
            raise ValueError(f"--speculative-ddtree-budget must be positive, got {budget}.")
        if cap is not None and budget is None:
            raise ValueError("--speculative-ddtree-topk-cap requires --speculative-ddtree-budget.")
        if cap is not None and not 1 <= cap <= vocabulary:
            raise ValueError(f"--speculative-ddtree-topk-cap must be in 1..{vocabulary}, got {cap}.")
        config = self._config("speculative_draft_model_path", self.speculative_draft_model_path)
        asked = self.speculative_dflash_block_size or self.speculative_num_draft_tokens
        self.speculative_num_draft_tokens = asked or int(config.get("block_size", DRAFT_TOKENS))
        self.speculative_num_steps = self.speculative_eagle_topk = 1
        self.disable_overlap_schedule = True

    def _config(self, flag: str, path: str) -> dict[str, Any]:
        file = Path(path, "config.json")
        if not file.is_file():
            raise OSError(f"{flag}: {path} does not hold a config.json.")
        config: dict[str, Any] = json.loads(file.read_text())
        return config

    def as_dict(self) -> dict[str, Any]:
        """Field names and values."""
        return {field.name: getattr(self, field.name) for field in fields(self)}
