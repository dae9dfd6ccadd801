"""Adopting a hand-written unit loses nothing of it."""

from dataclasses import replace

import pytest

from ddtree_ops.model.errors import Refused
from ddtree_ops.model.profile import Profile
from ddtree_ops.plan.adopt import adopt

UNIT = """\
[Unit]
Description=SGLang by hand
After=network.target nvidia-persistenced.service
Requires=nvidia-persistenced.service

[Service]
ExecStart=-/opt/venv/bin/python -m sglang.launch_server --model-path /models/m --port 30001 \\
  --speculative-algorithm DFLASH --speculative-draft-model-path /models/d \\
  --speculative-ddtree-budget 7 --weird-flag "two words" --quantization none
User=sglang
Environment=NCCL_DEBUG=WARN "B=x y"
EnvironmentFile=/etc/sglang.env
LimitNOFILE=65536
TimeoutStartSec=20min
OOMScoreAdjust=-500
"""


def test_every_setting_becomes_a_field_or_stays_a_line() -> None:
    assert adopt(UNIT, "sglang", name="found") == Profile(
        name="found",
        service="sglang",
        venv="/opt/venv",
        model="/models/m",
        drafter="/models/d",
        port=30001,
        budget=7,
        extra_flags=("--weird-flag", "two words", "--quantization", "none"),
        environment=(("NCCL_DEBUG", "WARN"), ("B", "x y")),
        environment_file="/etc/sglang.env",
        user="sglang",
        limits=(("LimitNOFILE", "65536"),),
        load_timeout_s=1200,
        unit_lines=(
            ("Unit", "After=nvidia-persistenced.service"),
            ("Unit", "Requires=nvidia-persistenced.service"),
            ("Service", "OOMScoreAdjust=-500"),
        ),
    )


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("90", 90), ("1min 30s", 90), ("2h", 7200), ("infinity", 1800), ("soon", 1800)],
)
def test_a_start_timeout_is_read_as_systemd_spans_are(value: str, seconds: int) -> None:
    text = UNIT.replace("20min", value)
    assert adopt(text, "sglang", name="found") == replace(
        adopt(UNIT, "sglang", name="found"), load_timeout_s=seconds
    )


@pytest.mark.parametrize("line", ["", "ExecStart=/usr/bin/redis-server", "ExecStart=/bin/sh -c 'run'"])
def test_a_unit_that_starts_no_engine_is_refused(line: str) -> None:
    with pytest.raises(Refused):
        adopt(f"[Service]\n{line}\n", "sglang", name="found")
