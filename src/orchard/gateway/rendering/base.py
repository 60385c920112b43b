"""The seam to a model's form of a conversation: messages become ids, sampled ids become a message.

A family of models is one file here that says how its answers are read; its prompts are its chat template's matter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from orchard.trajectories.messages import Message


class Reader(Protocol):
    """Reads one answer as it is sampled; what it yields are ``delta`` objects of OpenAI's chunks.

    Fed in any portions, the deltas assemble to the same message. A tool call comes whole, once it has ended; one that
    is malformed stays text.
    """

    @property
    def stopped(self) -> bool:
        """Whether a string to stop at has come: the rest of the answer is not wanted."""
        ...

    @property
    def stop_string(self) -> str | None:
        """The string that has come."""
        ...

    @property
    def overshot(self) -> bool:
        """Whether the ids in which that string ended say more than it."""
        ...

    def feed(self, ids: Sequence[int]) -> list[Message]:
        """Take the next sampled ids; return what is certain by now."""
        ...

    def end(self) -> list[Message]:
        """Return what was held back: nothing comes any more."""
        ...


class Renderer(Protocol):
    """One model's chat template, tokenizer and syntax of answers."""

    @property
    def family(self) -> str:
        """``qwen3``, ``qwen3-coder``, ``hermes``, ``chatml`` or ``plain``."""
        ...

    @property
    def template_hash(self) -> str:
        """Of template and tokenizer: equal hashes render equal prompts."""
        ...

    @property
    def stop_ids(self) -> tuple[int, ...]:
        """Ids that end an answer; the first is the end of a turn as the template writes it."""
        ...

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Message] = (),
        *,
        generate: bool = True,
        options: Mapping[str, Any] | None = None,
    ) -> list[int]:
        """Return a conversation's ids exactly as the template renders it.

        Args:
            messages: in OpenAI chat form.
            tools: in OpenAI chat form.
            generate: end with the beginning of an answer.
            options: further names that the template knows (``enable_thinking`` …).

        Raises:
            EngineRefused: the template does not take such messages, or they hold more than text.
        """
        ...

    def extend(
        self,
        prefix: Sequence[int],
        messages: Sequence[Message],
        held: int,
        *,
        options: Mapping[str, Any] | None = None,
    ) -> list[int] | None:
        """Return what follows ``prefix``, the ids of the first ``held`` messages, of which the last is an answer.

        The end of that answer's turn is added where it was cut, then the messages after it and the beginning of the
        next answer. None where the template does not end turns in a way that can be found.

        Raises:
            EngineRefused: see ``render``.
        """
        ...

    def answer(self, message: Message) -> list[int]:
        """Return the ids by which a model would have said ``message``, the end of its turn included.

        Raises:
            EngineRefused: see ``render``.
        """
        ...

    def reader(
        self,
        prompt: Sequence[int],
        tools: Sequence[Message] = (),
        *,
        skip: str = "",
        stop: Sequence[str] = (),
    ) -> Reader:
        """Return a reader of the answer to ``prompt``.

        Args:
            prompt: its end tells whether the answer begins inside of reasoning.
            tools: those that may be called; their schemas tell the types of arguments that are written as text.
            skip: the answer's beginning that the prompt holds already (see ``head``).
            stop: strings at which the answer ends; they are not part of it.
        """
        ...

    def head(self, prompt: Sequence[int], tool: str | None) -> str:
        """Return the text that begins a call of ``tool``, or of any: put behind ``prompt``, it forces one.

        Raises:
            EngineRefused: this family has no tool calls.
        """
        ...

    def encode(self, text: str) -> list[int]:
        """Return the ids of a text; the names of special tokens in it become those."""
        ...

    def text(self, ids: Sequence[int]) -> str:
        """Return ids as text, special tokens included."""
        ...
