"""Whether a text is garbled: broken output of a language model, in whatever language, script or notation.

The verdict looks for what decoding leaves behind when it went wrong, never for bad style: tokens that no
writer produces. Each sign has a weight; weights add up, and 1.0 makes a verdict. A text without a strong sign
is left alone: a wrong word in the right place is what re-scoring is for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from ddtree_ops.checks.signs.characters import characters
from ddtree_ops.checks.signs.code import code
from ddtree_ops.checks.signs.echo import echo
from ddtree_ops.checks.signs.english import english
from ddtree_ops.checks.signs.loops import loops
from ddtree_ops.checks.signs.mixture import mixture
from ddtree_ops.checks.signs.sign import Sign

_FAMILIES: tuple[Callable[[str, str | None], Iterator[Sign]], ...] = (
    characters,
    loops,
    mixture,
    echo,
    english,
    code,
)
_ENOUGH = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class GarbleVerdict:
    """`reasons` are in order of weight; `span` is where the heaviest sign stands, in characters."""

    garbled: bool
    reasons: tuple[str, ...] = ()
    span: tuple[int, int] | None = None


def garble_verdict(text: str, prompt: str | None = None) -> GarbleVerdict:
    """Judges one answer; with its prompt, pieces of the prompt in it count too. An empty text is no text."""
    if not text.strip():
        return GarbleVerdict(garbled=True, reasons=("the answer is empty",), span=(0, len(text)))
    signs = sorted(
        (sign for family in _FAMILIES for sign in family(text, prompt)), key=lambda sign: -sign.weight
    )
    if sum(sign.weight for sign in signs) < _ENOUGH - 1e-9:
        return GarbleVerdict(garbled=False)
    return GarbleVerdict(garbled=True, reasons=tuple(sign.reason for sign in signs), span=signs[0].span)
