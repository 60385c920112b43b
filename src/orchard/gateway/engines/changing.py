"""What the clock and chance write into a harness's requests: another run of the same turn says it otherwise.

Seen: today's date, the time to the second, times of files, durations of commands; ids of sessions and of outputs,
names of temporary files, addresses of objects. All else that differs is a difference.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

Message = Mapping[str, Any]

_DAY = r"(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*"
_MONTH = r"(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)[a-z]*"
_OF_FILES = rf"{_MONTH} {{1,2}}\d{{1,2}} \d\d:\d\d(?::\d\d)?(?: [A-Z]{{3,4}})?(?: \d{{4}})?"
_DATE = (
    rf"(?:\d{{4}}-\d\d-\d\d|{_MONTH}\.? {{1,2}}\d{{1,2}},? {{1,2}}\d{{4}}|\d{{1,2}} {_MONTH}\.?,? \d{{4}}|{_OF_FILES})"
)
_TIME = r"\d{1,2}:\d\d(?::\d\d(?:[.,]\d+)?)?(?: ?[AaPp][Mm]\b)?"
_LENGTH = r"(?:\d+m ?)?\d+(?:\.\d+)? ?(?:[nmuµ]?s|sec(?:ond)?s?|minutes?)\b"
_LINE = r"(?<=\\[nrt])"
"""A result may be JSON in a text, in which a line begins after an ``n``."""
_WORDS = re.compile(
    rf"(?P<clock>(?:(?<![\w.:-])|{_LINE})(?:(?:{_DAY},? )?{_DATE}(?:[T ,]+{_TIME})?|{_TIME}(?![\w:])|{_LENGTH})"
    r"|(?<=duration_ms>)\d+)"
    rf"|(?P<chance>(?:(?<!\w)|{_LINE})(?:[0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}}|0x[0-9a-f]{{6,16}}"
    r"|tmp(?:[a-z0-9_]{8}|\.\w{10})|(?<=Chunk ID: )[0-9a-f]{6}|a[0-9a-f]{16}|ses_[0-9A-Za-z]{26})\b)"
)
"""A time is no line and column of a file: it follows no colon. ``Chunk ID`` is Codex's, of each output; the last
two are Claude Code's and opencode's, of sub-agents, and ``duration_ms`` is Claude Code's."""


def steady(message: Message) -> Message:
    """Return a message with a stand-in for each word of the clock and of chance; the model's own stays as it is."""
    if message.get("role") == "assistant" or "content" not in message:
        return message
    return {**message, "content": _steady(message["content"])}


def causes(recorded: Iterable[Message], given: Iterable[Message]) -> list[str]:
    """Return which of ``clock`` and ``chance`` wrote other words into a conversation."""
    one, two = _found(recorded), _found(given)
    return [cause for cause in ("clock", "chance") if one[cause] != two[cause]]


def _steady(value: Any) -> Any:
    if isinstance(value, str):
        return _WORDS.sub(lambda found: f"<{found.lastgroup}>", value)
    if isinstance(value, list):
        return [_steady(one) for one in cast("list[Any]", value)]
    if isinstance(value, Mapping):
        return {key: _steady(one) for key, one in cast("Message", value).items()}
    return value


def _found(messages: Iterable[Message]) -> dict[str, list[str]]:
    words: dict[str, list[str]] = {"clock": [], "chance": []}
    for message in messages:
        if message.get("role") != "assistant":
            _collect(message.get("content"), words)
    return words


def _collect(value: Any, words: dict[str, list[str]]) -> None:
    if isinstance(value, str):
        for found in _WORDS.finditer(value):
            words[str(found.lastgroup)].append(found[0])
    elif isinstance(value, list | Mapping):
        inner = cast("list[Any]", value) if isinstance(value, list) else list(cast("Message", value).values())
        for one in inner:
            _collect(one, words)
