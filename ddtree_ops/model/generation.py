"""What an engine answered to one request."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Generation:
    """One completion from the native route; token ids are the engine's own."""

    text: str
    output_ids: tuple[int, ...]
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0
    verify_steps: int | None = None  # `spec_verify_ct`; None: no speculation reported
    finish: str = "length"
    seconds: float = 0.0

    @property
    def accept_length(self) -> float | None:
        """completion_tokens / spec_verify_ct of this request, bonus token included."""
        return self.completion_tokens / self.verify_steps if self.verify_steps else None
