"""The renderer of a chat template, a tokenizer and a family: whole prompts, and what follows a recorded one."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any, cast

from orchard.core.errors import InvalidArgument
from orchard.gateway.rendering.family import Family, function_of
from orchard.gateway.rendering.forms import prepared
from orchard.gateway.rendering.reading import AnswerReader
from orchard.gateway.rendering.template import ChatTemplate
from orchard.gateway.rendering.vocabulary import Vocabulary
from orchard.trajectories.messages import Message

_ANSWER = "0b7e55ed5e47"
"""Stands for an answer's text, where only what follows it is of interest."""
_TAIL = 16
"""So many ids of a prompt's end tell whether it ends inside of reasoning."""


class TemplateRenderer:
    """A ``Renderer``.

    Args:
        vocabulary: the tokenizer.
        template: the chat template.
        family: how answers are read.
        stop: further ids that end an answer.
        options: names that each rendering gives to the template.

    Raises:
        InvalidArgument: the template ends an answer's turn with no token.
    """

    def __init__(
        self,
        vocabulary: Vocabulary,
        template: ChatTemplate,
        family: Family,
        *,
        stop: Sequence[int] = (),
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self._vocabulary, self._template, self._family = vocabulary, template, family
        self._options = dict(options or {})
        self._developer = "developer" in template.source
        self._turn_end = self._find_turn_end()
        ending = vocabulary.encode(self._turn_end)
        if len(ending) != 1:
            raise InvalidArgument(f"{self._turn_end!r} ends a turn and is no single token", field="chat_template")
        self.family = family.name
        self.stop_ids = tuple(dict.fromkeys([*ending, *stop]))
        self.template_hash = _digest(template, vocabulary, family)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        generate: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """See ``Renderer.render``."""
        return self._vocabulary.encode(self._text(messages, tools, generate=generate, options=options))

    def extend(
        self,
        prefix: Sequence[int],
        messages: Sequence[Message],
        held: int,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> list[int] | None:
        """See ``Renderer.extend``."""
        called = cast("list[Message]", messages[held - 1].get("tool_calls") or [])
        calls = [_without_arguments(call) for call in called]
        answer: Message = {"role": "assistant", "content": _ANSWER, **({"tool_calls": calls} if calls else {})}
        stub = [{"role": "user", "content": "-"}, answer, *messages[held:]]
        text = self._text(stub, (), generate=True, options=options)
        end = text.find(self._turn_end, text.find(_ANSWER))
        if end < 0:
            return None
        ids = self._vocabulary.encode(text[end:])
        return ids[1:] if prefix[-1] == self.stop_ids[0] else ids

    def answer(self, message: Message) -> list[int]:
        """See ``Renderer.answer``."""
        asked: Message = {"role": "user", "content": "-"}
        before = self._text([asked], (), generate=True)
        text = self._text([asked, {**message, "role": "assistant"}], (), generate=False)
        same = next((at for at, (one, two) in enumerate(zip(before, text, strict=False)) if one != two), len(before))
        end = text.rfind(self._turn_end) + len(self._turn_end)
        return self._vocabulary.encode(text[same:end])

    def reader(
        self,
        prompt: Sequence[int],
        tools: Sequence[Message] = (),
        *,
        skip: str = "",
        stop: Sequence[str] = (),
    ) -> AnswerReader:
        """See ``Renderer.reader``."""
        syntax = self._family.syntax
        tags = [tag for pair in (syntax.think, syntax.call) if pair for tag in pair]
        inside = self._ends_thinking(prompt)
        reader = AnswerReader(self._vocabulary.spelling(tags), syntax, tools, inside=inside, stop=stop)
        reader.begin(skip)
        return reader

    def head(self, prompt: Sequence[int], tool: str | None) -> str:
        """See ``Renderer.head``."""
        think = self._family.syntax.think
        closing = f"\n{think[1]}\n\n" if think and self._ends_thinking(prompt) else ""
        return closing + self._family.head(tool)

    def encode(self, text: str) -> list[int]:
        """See ``Renderer.encode``."""
        return self._vocabulary.encode(text)

    def text(self, ids: Sequence[int]) -> str:
        """See ``Renderer.text``."""
        return self._vocabulary.decode(ids)

    def _text(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message],
        *,
        generate: bool,
        options: Mapping[str, Any] | None = None,
    ) -> str:
        given, known = self._family.adapt(prepared(messages, developer=self._developer), tools)
        return self._template.text(given, known, generate=generate, options={**self._options, **(options or {})})

    def _find_turn_end(self) -> str:
        """Return the token that the template writes behind an answer."""
        said = [{"role": "user", "content": "-"}, {"role": "assistant", "content": _ANSWER}]
        after = self._text(said, (), generate=False).partition(_ANSWER)[2]
        for size in range(1, len(after) + 1):
            if after[:size].strip() in self._vocabulary.added:
                return after[:size].strip()
        raise InvalidArgument(
            f"behind an answer the chat template writes {after!r}, which begins with no token that could end a turn",
            field="chat_template",
        )

    def _ends_thinking(self, prompt: Sequence[int]) -> bool:
        think = self._family.syntax.think
        return bool(think) and self._vocabulary.decode(prompt[-_TAIL:]).rstrip().endswith(think[0])


def _without_arguments(call: Message) -> Message:
    return {**call, "function": {"name": function_of(call).get("name"), "arguments": {}}}


def _digest(template: ChatTemplate, vocabulary: Vocabulary, family: Family) -> str:
    digest = hashlib.blake2b(digest_size=16)
    for part in (template.source, repr(sorted(template.tokens.items())), family.name, vocabulary.fingerprint):
        digest.update(part.encode() + b"\0")
    return digest.hexdigest()
