"""A prompt's ids come from the model's own template, by the surest way that the engine offers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from typing import Any

import pytest

from ddtree_ops.engine.chat_template import ChatTemplate
from ddtree_ops.engine.http import EngineClient, EngineDown
from ddtree_ops.engine.prompts import NO_THINKING, Prompter, Way
from ddtree_ops.model.errors import Refused
from ddtree_ops.model.ports import Clock

Serve = Callable[[Mapping[str, Any]], str]
CHATML = (
    "{{ bos_token }}{% for m in messages %}\n"
    "    {% if true %}<|im_start|>{% endif %}{{ m.role }}\n{{ m['content'] }}<|im_end|>{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% if thinking %}<think>{% endif %}{% endif %}"
)
NAMED = [{"name": "rag", "template": "R"}, {"name": "default", "template": "D"}]
HELLO = [{"role": "user", "content": "hello <b>"}]


class Engine:
    """Tokenises a text as its characters; `newer` takes messages too; its chat template adds two tokens."""

    def __init__(self, *, newer: bool = False, chat_tokens: int | None = None) -> None:
        self.newer, self.chat_tokens = newer, chat_tokens
        self.kwargs: object = None

    def routes(self) -> Mapping[str, Any]:
        return {"POST /v1/tokenize": self.tokenize, "POST /v1/chat/completions": self.chat}

    def tokenize(self, request: dict[str, Any]) -> tuple[int, object]:
        body = request["body"]
        if "prompt" in body:
            text = ("^" if body["add_special_tokens"] else "") + body["prompt"]
        elif self.newer:
            text = "<" + body["messages"][0]["content"] + ">"
            self.kwargs = body["chat_template_kwargs"]
        else:
            return 400, {"object": "error", "message": "Field required: prompt"}
        return 200, {"tokens": [ord(c) for c in text], "count": len(text), "max_model_len": 100}

    def chat(self, request: dict[str, Any]) -> tuple[int, object]:
        if self.chat_tokens is None:
            return 400, {"object": "error", "message": "no chat template"}
        self.kwargs = request["body"]["chat_template_kwargs"]
        message = {"role": "assistant", "content": "x"}
        return 200, {
            "choices": [{"message": message, "finish_reason": "length"}],
            "usage": {"prompt_tokens": self.chat_tokens, "completion_tokens": 1},
        }


def ids(text: str) -> tuple[int, ...]:
    return tuple(ord(c) for c in text)


@pytest.fixture
def prompter(serve: Serve, clock: Clock) -> Iterator[Callable[..., Prompter]]:
    with ExitStack() as clients:

        def make(engine: Engine, template: ChatTemplate | None = None) -> Prompter:
            client = clients.enter_context(EngineClient(base_url=serve(engine.routes()), clock=clock))
            return Prompter(client=client, template=template)

        yield make


def test_an_engine_that_takes_messages_renders_them_itself(prompter: Callable[..., Prompter]) -> None:
    engine = Engine(newer=True)
    prompt = prompter(engine, ChatTemplate(source="[{{ messages[0].content }}]")).ids("sea")
    assert (prompt.ids, prompt.way, prompt.note) == (ids("<sea>"), Way.ENGINE, "")
    assert engine.kwargs == NO_THINKING


def test_an_older_one_gets_the_template_rendered_here_when_its_count_agrees(
    prompter: Callable[..., Prompter],
) -> None:
    engine = Engine(chat_tokens=5)
    used = prompter(engine, ChatTemplate(source="[{{ messages[0].content }}]"))
    assert (used.ids("sea").ids, used.ids("sea").way) == (ids("[sea]"), Way.TEMPLATE)
    assert used.ids("longer").ids == ids("[longer]")
    assert engine.kwargs == NO_THINKING


@pytest.mark.parametrize(
    ("engine", "template", "note"),
    [
        (
            Engine(chat_tokens=9),
            "[{{ messages[0].content }}]",
            "gives 5 tokens, the engine's chat route 9",
        ),
        (Engine(), "[{{ messages[0].content }}]", "no chat template"),
        (Engine(chat_tokens=5), "{{ raise_exception('only tools') }}", "only tools"),
        (Engine(chat_tokens=5), None, "the model's directory holds no chat template"),
    ],
)
def test_a_template_that_cannot_be_trusted_leaves_the_bare_prompt_and_says_why(
    prompter: Callable[..., Prompter], engine: Engine, template: str | None, note: str
) -> None:
    prompt = prompter(engine, ChatTemplate(source=template) if template else None).ids("sea")
    assert (prompt.ids, prompt.way) == (ids("^sea"), Way.PLAIN)
    assert note in prompt.note


def test_an_engine_that_is_down_is_no_reason_to_fall_back(clock: Clock) -> None:
    with EngineClient(base_url="http://127.0.0.1:9", clock=clock) as client, pytest.raises(EngineDown):
        Prompter(client=client).ids("sea")


def test_a_template_renders_as_transformers_would() -> None:
    template = ChatTemplate(source=CHATML, special={"bos_token": "<s>"})
    assert template.render(HELLO) == "<s><|im_start|>user\nhello <b><|im_end|><|im_start|>assistant\n"
    assert template.render(HELLO, thinking=True).endswith("assistant\n<think>")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ messages | tojson }}", json.dumps(HELLO)),
        (
            "{% for m in messages %}{% generation %}{{ m.role }}{% endgeneration %}{% break %}{% endfor %}",
            "user",
        ),
        ("{% if tools %}t{% else %}none{% endif %}{{ missing is defined }}", "noneFalse"),
    ],
)
def test_the_extras_that_templates_lean_on_are_there(source: str, expected: str) -> None:
    assert ChatTemplate(source=source).render(HELLO) == expected


@pytest.mark.parametrize("source", ["{{ ''.__class__.__mro__ }}", "{% if %}", "{{ messages.append(1) }}"])
def test_a_template_that_is_broken_or_reaches_out_is_refused(source: str) -> None:
    with pytest.raises(Refused, match="expected a prompt"):
        ChatTemplate(source=source).render(HELLO)


@pytest.mark.parametrize(
    ("files", "source", "special"),
    [
        ({"chat_template.jinja": "A", "tokenizer_config.json": '{"chat_template": "B"}'}, "A", {}),
        (
            {"tokenizer_config.json": '{"chat_template": "B", "bos_token": {"content": "<s>"}}'},
            "B",
            {"bos_token": "<s>"},
        ),
        (
            {
                "chat_template.json": '{"chat_template": "C"}',
                "tokenizer_config.json": '{"eos_token": "</s>"}',
            },
            "C",
            {"eos_token": "</s>"},
        ),
        (
            {"tokenizer_config.json": json.dumps({"chat_template": NAMED})},
            "D",
            {},
        ),
    ],
)
def test_the_template_is_found_where_models_keep_it(
    files: dict[str, str], source: str, special: dict[str, str]
) -> None:
    assert ChatTemplate.from_files(files) == ChatTemplate(source=source, special=special)


@pytest.mark.parametrize(
    "files", [{}, {"tokenizer_config.json": "{}"}, {"tokenizer_config.json": "not JSON"}]
)
def test_a_model_without_a_template_has_none(files: dict[str, str]) -> None:
    assert ChatTemplate.from_files(files) is None
