"""User prompts as the token ids that the model's chat template makes of them.

Re-scoring needs the exact ids, and SGLang's releases differ in how one gets them: newer ones render messages
in `/v1/tokenize`; 0.5.11 tokenises text alone, so the template is rendered here, tokenised there, and its
length compared with what the engine's own chat route counts. Where neither works, the bare prompt is used and
said so: it still compares an engine with itself, but an instruct model may answer it less well.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from ddtree_ops.engine.answers import Ids
from ddtree_ops.engine.chat_template import ChatTemplate
from ddtree_ops.engine.http import EngineClient, EngineRefusal, Sampling
from ddtree_ops.model.errors import Refused

# Models that can think first are told not to, as SGLang's reasoning_effort "none" does; others ignore these.
NO_THINKING = {"thinking": False, "enable_thinking": False}


class Way(StrEnum):
    """Who made the ids."""

    ENGINE = "engine"  # /v1/tokenize rendered the messages
    TEMPLATE = "template"  # rendered here, tokenised by the engine, its length confirmed by the chat route
    PLAIN = "plain"  # no template


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptIds:
    ids: Ids
    way: Way
    note: str = ""  # why the way is PLAIN


@dataclass(slots=True, kw_only=True)
class Prompter:
    """Turns prompts into ids; the first one decides the way: ask for it before sharing this with threads."""

    client: EngineClient
    template: ChatTemplate | None = None
    _way: Way | None = field(default=None, init=False)
    _note: str = field(default="", init=False)

    def ids(self, text: str) -> PromptIds:
        """The ids of one user message's prompt."""
        if self._way is None:
            self._way = self._decide(text)
        return PromptIds(ids=self._by(self._way, text), way=self._way, note=self._note)

    def _by(self, way: Way, text: str) -> Ids:
        if way is Way.ENGINE:
            return self.client.tokenize_messages(_messages(text), template_kwargs=NO_THINKING)
        if way is Way.TEMPLATE and self.template is not None:
            return self.client.tokenize(self.template.render(_messages(text), **NO_THINKING))
        return self.client.tokenize(text, special=True)

    def _decide(self, text: str) -> Way:
        try:
            self._by(Way.ENGINE, text)
        except EngineRefusal:
            pass
        else:
            return Way.ENGINE
        self._note = self._objection(text)
        return Way.PLAIN if self._note else Way.TEMPLATE

    def _objection(self, text: str) -> str:
        """Why the template as rendered here cannot be trusted; empty when the engine counts the same."""
        if self.template is None:
            return "the model's directory holds no chat template"
        try:
            ours = len(self._by(Way.TEMPLATE, text))
            one = Sampling(max_tokens=1)
            theirs = self.client.chat(_messages(text), one, template_kwargs=NO_THINKING).prompt_tokens
        except (EngineRefusal, Refused) as error:
            return str(error)
        return "" if ours == theirs else f"the template gives {ours} tokens, the engine's chat route {theirs}"


def _messages(text: str) -> list[dict[str, str]]:
    return [{"role": "user", "content": text}]
