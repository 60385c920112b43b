"""Reading an answer: reasoning, text and tool calls, told apart by the tags that a family writes around them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

from orchard.core.ids import new_id
from orchard.gateway.rendering.vocabulary import Spelling
from orchard.trajectories.messages import Message

Tags = tuple[str, str]
"""What opens, what closes."""


@dataclass(frozen=True)
class Call:
    """A tool call as it was written."""

    name: str
    arguments: str
    """JSON."""


@dataclass(frozen=True)
class Syntax:
    """How a family writes."""

    think: Tags | None = ("<think>", "</think>")
    call: Tags | None = ("<tool_call>", "</tool_call>")
    read: Callable[[str, Sequence[Message]], list[Call] | None] = lambda body, tools: None
    """Reads what stands between the tags of a call; None where it is malformed."""


class AnswerReader:
    """A ``Reader``. What it says does not depend on the portions in which ids come.

    Args:
        spelling: ids to text.
        syntax: what is looked for.
        tools: those that may be called; without any, what looks like a call is text.
        inside: whether the answer begins inside of reasoning.
        stop: strings that end it.
    """

    def __init__(
        self,
        spelling: Spelling,
        syntax: Syntax,
        tools: Sequence[Message],
        *,
        inside: bool = False,
        stop: Sequence[str] = (),
    ) -> None:
        self._spelling, self._syntax, self._tools, self._stop = spelling, syntax, tools, tuple(filter(None, stop))
        self._state: Literal["text", "think", "call"] = "think" if inside else "text"
        self._raw = ""
        """Text that may yet turn out to begin a string to stop at."""
        self._held = ""
        """Text that may yet turn out to be a tag, or blanks before one."""
        self._gap = ""
        """Blanks left out before a call; they are text where it turns out to be none."""
        self._tried = 0
        """Up to where a body that did not read as a call reaches."""
        self._calls = 0
        self._fresh = {"content": True, "reasoning_content": True}
        """Whether nothing was said yet; reasoning, and text after it, begin without new lines."""
        self._strip = inside
        self.stopped = self.overshot = False
        self.stop_string: str | None = None

    def begin(self, text: str) -> None:
        """Take the beginning of the answer that the prompt holds already."""
        self._held += text

    def feed(self, ids: Sequence[int]) -> list[Message]:
        """See ``Reader.feed``."""
        return self._take(self._spelling.feed(ids), final=False)

    def end(self) -> list[Message]:
        """See ``Reader.end``."""
        return self._take(self._spelling.end(), final=True)

    def _take(self, text: str, *, final: bool) -> list[Message]:
        self._held += self._until_stop(text, final=final)
        return self._scan(final=final)

    def _until_stop(self, text: str, *, final: bool) -> str:
        if self.stopped:
            return ""
        self._raw += text
        found = [(at, at + len(one)) for one in self._stop if (at := self._raw.find(one)) >= 0]
        self.stopped = bool(found)
        self.overshot = bool(found) and min(stop for _, stop in found) < len(self._raw)
        self.stop_string = self._raw[slice(*min(found))] if found else None
        end = min(found)[0] if found else len(self._raw) - (0 if final else _begun(self._raw, self._stop))
        ready, self._raw = self._raw[:end], "" if found else self._raw[end:]
        return ready

    def _scan(self, *, final: bool) -> list[Message]:
        said: list[Message] = []
        step = {"text": self._text, "think": self._think, "call": self._call}
        while step[self._state](said, final):
            pass
        return said

    def _text(self, said: list[Message], final: bool) -> bool:
        """Say text up to the next tag; True where one was found."""
        openings = self._openings()
        found = [(at, tag) for tag in openings if (at := self._held.find(tag)) >= 0]
        if found:
            at, tag = min(found)
            before, self._held = self._held[:at], self._held[at + len(tag) :]
            self._state, self._tried = "think" if tag == self._open("think") else "call", 0
            text = before.rstrip() if self._calls or self._state == "think" else before.removesuffix("\n")
            self._gap = before[len(text) :]
            self._say(said, "content", text)
            return True
        keep = 0 if final else _begun(self._held, openings)
        ready = self._held[: len(self._held) - keep]
        if not final or self._calls:  # blanks may stand before a call, and mean nothing after one
            ready = ready.rstrip()
        self._say(said, "content", ready)
        self._held = "" if final else self._held[len(ready) :]
        return False

    def _openings(self) -> list[str]:
        think, call = self._open("think"), self._open("call")
        at_start = think is not None and self._fresh["content"] and self._fresh["reasoning_content"] and not self._calls
        head = self._held.lstrip()
        starts = think is not None and (head.startswith(think) or think.startswith(head))
        return [tag for tag, on in ((think, at_start and starts), (call, bool(self._tools))) if tag is not None and on]

    def _open(self, kind: Literal["think", "call"]) -> str | None:
        tags = self._syntax.think if kind == "think" else self._syntax.call
        return tags[0] if tags else None

    def _think(self, said: list[Message], final: bool) -> bool:
        assert self._syntax.think is not None
        close = self._syntax.think[1]
        if (at := self._held.find(close)) >= 0:
            self._say(said, "reasoning_content", self._held[:at].rstrip("\n"))
            self._held, self._state, self._strip = self._held[at + len(close) :], "text", True
            return True
        keep = 0 if final else _begun(self._held, [close])
        ready = self._held[: len(self._held) - keep].rstrip("\n")
        self._say(said, "reasoning_content", ready)
        self._held = "" if final else self._held[len(ready) :]
        return False

    def _call(self, said: list[Message], final: bool) -> bool:
        """Read a call once it closes. Its arguments may hold the closing tag too: then a later one closes it."""
        assert self._syntax.call is not None
        opening, close = self._syntax.call
        at = self._held.find(close, self._tried)
        first = self._held.find(close)
        if at < 0 and not final:
            return False if first < 0 or self._held.find(opening, first) < 0 else self._give_up(said, first)
        if at >= 0 and 0 <= self._held.find(opening, first + len(close)) < at:
            return self._give_up(said, first)
        body = self._held if at < 0 else self._held[:at]
        calls = self._syntax.read(body, self._tools)
        if calls is not None:
            said += [self._delta(call) for call in calls]
            self._held, self._state = "" if at < 0 else self._held[at + len(close) :], "text"
            return True
        if at >= 0:
            self._tried = at + len(close)
            return True
        return self._give_up(said, first)

    def _give_up(self, said: list[Message], first: int) -> bool:
        """Leave a malformed call as the text that it is, up to its first end, and read on behind it."""
        assert self._syntax.call is not None
        opening, close = self._syntax.call
        end = len(self._held) if first < 0 else first + len(close)
        self._say(said, "content", self._gap + opening + self._held[:end])
        self._held, self._state = self._held[end:], "text"
        return True

    def _delta(self, call: Call) -> Message:
        index, self._calls = self._calls, self._calls + 1
        function = {"name": call.name, "arguments": call.arguments}
        return {"tool_calls": [{"index": index, "id": new_id("call"), "type": "function", "function": function}]}

    def _say(self, said: list[Message], field: str, text: str) -> None:
        if self._fresh[field] and (self._strip or field == "reasoning_content"):
            text = text.lstrip("\n")
        if text:
            self._fresh[field] = False
            said.append({field: text})


def _begun(text: str, tags: Sequence[str]) -> int:
    """Return how many characters at the end of ``text`` may be the beginning of a tag."""
    longest = max((len(tag) for tag in tags), default=1) - 1
    for size in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-size:]) for tag in tags):
            return size
    return 0
