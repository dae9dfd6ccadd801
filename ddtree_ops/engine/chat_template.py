"""A model's own chat template, rendered here because SGLang up to 0.5.11 gives no token ids of one."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ddtree_ops.model.errors import Refused

# Files of a model's directory that may hold its template or the tokens that it names; any may be absent.
TEMPLATE_FILES = ("chat_template.jinja", "chat_template.json", "tokenizer_config.json")

_SPECIAL = ("bos_token", "eos_token", "unk_token", "pad_token", "sep_token", "cls_token", "mask_token")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatTemplate:
    """A Jinja chat template with its tokenizer's special tokens, as Transformers would render it."""

    source: str
    special: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def from_files(cls, files: Mapping[str, str]) -> ChatTemplate | None:
        """The template that these files of a model's directory hold (name → text); None when none does."""
        config = _object(files.get("tokenizer_config.json"))
        source = (
            files.get("chat_template.jinja")
            or _named(_object(files.get("chat_template.json")).get("chat_template"))
            or _named(config.get("chat_template"))
        )
        special = {name: text for name in _SPECIAL if (text := _token(config.get(name))) is not None}
        return cls(source=source, special=special) if source else None

    def render(self, messages: Sequence[Mapping[str, str]], **options: object) -> str:
        """The prompt for these messages with the answer's opening; Refused when the template objects."""
        try:
            template = _environment().from_string(self.source)
            return template.render(
                messages=[dict(message) for message in messages],
                add_generation_prompt=True,
                tools=None,
                **{**self.special, **options},
            )
        except jinja2.TemplateError as error:
            raise Refused("chat template", f"got {error}, expected a prompt") from error


class _Generation(Extension):
    """`{% generation %}` marks an answer's part for training; for a prompt its content stands as it is."""

    tags = {"generation"}  # noqa: RUF012 - the interface of jinja2's Extension

    def parse(self, parser: Parser) -> nodes.Node | list[nodes.Node]:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body, lineno=line)


def _environment() -> ImmutableSandboxedEnvironment:
    """Templates come from model directories: they get no more than Transformers gives them, sandboxed."""
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, "jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise
    return environment


def _tojson(value: object, indent: int | None = None, **_: object) -> str:
    return json.dumps(value, ensure_ascii=False, indent=indent)  # unlike Jinja's own, without HTML escapes


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


def _object(text: str | None) -> Mapping[str, object]:
    try:
        parsed = json.loads(text) if text else {}
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


def _named(value: object) -> str:
    """The template itself, or the one named "default" of several."""
    if isinstance(value, list):
        named = {entry.get("name"): entry.get("template") for entry in value if isinstance(entry, dict)}
        value = named.get("default")
    return value if isinstance(value, str) else ""


def _token(value: object) -> str | None:
    """A special token, which configs write as text or as an object with its content."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
