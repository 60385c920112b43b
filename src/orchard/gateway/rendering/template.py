"""Chat templates: messages become text, character for character as Hugging Face's ``apply_chat_template`` writes it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, NoReturn

from jinja2 import TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from orchard.core.errors import InvalidArgument
from orchard.gateway.errors import EngineRefused
from orchard.trajectories.messages import Message


class _Generation(Extension):
    """``{% generation %} … {% endgeneration %}`` marks what the model writes; the text is what stands between."""

    tags = {"generation"}  # noqa: RUF012 — jinja2's own form of it

    def parse(self, parser: Parser) -> list[nodes.Node]:
        """Return the body."""
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


class ChatTemplate:
    """A compiled template.

    Args:
        source: in Jinja's language.
        tokens: names of special tokens that it may use (``bos_token``, ``eos_token`` …).

    Raises:
        InvalidArgument: it is no template.
    """

    def __init__(self, source: str, tokens: Mapping[str, str]) -> None:
        self.source, self.tokens = source, dict(tokens)
        environment = ImmutableSandboxedEnvironment(
            trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
        )
        names: Any = environment  # its tables are typed as dicts of anything
        names.filters["tojson"] = _tojson
        names.globals |= {"raise_exception": _refuse, "strftime_now": _now}
        try:
            self._template = environment.from_string(source)
        except TemplateError as error:
            raise InvalidArgument(f"the chat template is no Jinja: {error}", field="chat_template") from error

    def text(
        self, messages: Sequence[Message], tools: Sequence[Message], *, generate: bool, options: Mapping[str, Any]
    ) -> str:
        """Return the conversation as the template writes it.

        Raises:
            EngineRefused: it does not take these messages.
        """
        try:
            return self._template.render(
                messages=list(messages), tools=list(tools) or None, documents=None, add_generation_prompt=generate,
                **{**self.tokens, **options},
            )  # fmt: skip
        except (TemplateError, TypeError, ValueError, LookupError) as error:  # whatever its expressions run into
            raise EngineRefused(f"the model's chat template does not take these messages: {error}") from error


def _tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's own escapes characters for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(message: str) -> NoReturn:
    raise TemplateError(message)


def _now(form: str) -> str:
    return datetime.now().astimezone().strftime(form)
