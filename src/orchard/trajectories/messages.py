"""When two chat messages are the same: harnesses send the model's own turns back in other forms.

Seen: arguments re-serialised, text as a list of parts, ``null`` / ``""`` / ``[]`` / no content, ids of tool calls
rewritten, reasoning left out, cache marks, results of parallel calls in another order. Each of these is equal here;
anything else that differs is a difference.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import Any, cast

Message = dict[str, Any]

_REASONING = ("reasoning_content", "reasoning", "thinking")
_IGNORED = frozenset({"cache_control", "refusal", "annotations", "audio", "function_call", "provider_specific_fields"})
"""Ignored where they are empty; a value in one of them counts."""
_CHANGE_FOLDER = re.compile(r"cd [^\s;&|]+ && ")
_LINE_END = re.compile(r"[ \t]+$", re.MULTILINE)
_TEXTS = ("text", "input_text", "output_text")
PARTS = "\n"
"""Stands between parts of text that are read as one text, as servers do it: for matching and rendering alike."""
_ALWAYS_IGNORED = frozenset({"cache_control", "provider_specific_fields"})


def reasoning_of(message: Mapping[str, Any]) -> str:
    """Return the text of the model's reasoning in ``message``; ``""`` where there is none."""
    for key in _REASONING:
        value = message.get(key)
        if isinstance(value, str) and value:
            return value
    return ""


@dataclass(frozen=True)
class Mark:
    """What of one message decides whether it is the same as another."""

    digest: bytes
    """Of its normal form, ids left out."""
    calls: tuple[str, ...]
    """Ids of the tool calls that it makes."""
    answers: str | None
    """Id of the tool call that it answers."""
    reasoning: str
    """Counts only where both messages have some."""
    forms: tuple[int, ...]
    """Hashes of what does not count, by kind, in the order of ``_FORMS``."""
    by_ids: bytes | None = None
    """Digest of its normal form with ids of tool calls instead of their arguments; None where it calls none."""
    arguments: tuple[Mapping[str, tuple[bytes, ...]], ...] = ()
    """Of each tool call: by name the digests under which an argument may come back, its own first."""
    unsaid: tuple[frozenset[str], ...] = ()
    """Of each tool call: names of the arguments that say nothing, as defaults do."""

    def may_return_as(self, given: Mark) -> bool:
        """Return whether ``given`` is this answer as Claude Code rewrites it.

        Seen: arguments that say nothing are filled in, the ``cd`` that begins a command is taken away, blanks at the
        ends of lines are dropped. All else that differs is another answer.
        """
        if self.by_ids is None or self.by_ids != given.by_ids or given.reasoning not in ("", self.reasoning):
            return False
        return all(
            one.keys() <= two.keys()
            and two.keys() - one.keys() <= unsaid
            and all(two[key][0] in one[key] for key in one)
            for one, two, unsaid in zip(self.arguments, given.arguments, given.unsaid, strict=True)
        )


def mark(message: Mapping[str, Any]) -> Mark:
    """Return the mark of a message."""
    answers, form = message.get("tool_call_id"), _form(message)
    arguments = [_named(call["arguments"]) for call in form.get("tool_calls", ())]
    return Mark(
        digest=_digest(form),
        calls=tuple(str(call.get("id")) for call in _dicts(message.get("tool_calls"))),
        answers=None if answers is None else str(answers),
        reasoning=reasoning_of(message),
        forms=tuple(hash(_text(kind(message))) for kind in _FORMS.values()),
        by_ids=_by_ids(form, _dicts(message.get("tool_calls"))),
        arguments=tuple({key: _returns(key, value) for key, value in one.items()} for one in arguments),
        unsaid=tuple(frozenset(key for key, value in one.items() if not value) for one in arguments),
    )


def _named(arguments: Any) -> Message:
    """Arguments that are no object stand for themselves."""
    return cast("Message", arguments) if isinstance(arguments, dict) else {"": [arguments]}


def _returns(name: str, value: Any) -> tuple[bytes, ...]:
    """Return digests of the forms in which an argument may come back, its own first."""
    forms = [value]
    if name == "command" and isinstance(value, str) and (found := _CHANGE_FOLDER.match(value)):
        forms.append(value[found.end() :])
    return tuple(dict.fromkeys(_digest(one) for form in forms for one in (form, _without_line_ends(form))))


def _without_line_ends(value: Any) -> Any:
    """Return a value whose texts have no blanks at the ends of their lines."""
    if isinstance(value, str):
        return _LINE_END.sub("", value)
    if isinstance(value, list):
        return [_without_line_ends(one) for one in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {key: _without_line_ends(one) for key, one in cast("Message", value).items()}
    return value


def _by_ids(form: Message, calls: list[Message]) -> bytes | None:
    ids = [call.get("id") for call in calls]
    if not ids or not all(isinstance(one, str) and one for one in ids):
        return None
    return _digest(
        {**form, "tool_calls": [[one, call["name"]] for one, call in zip(ids, form["tool_calls"], strict=True)]}
    )


def _digest(form: object) -> bytes:
    return hashlib.blake2b(_text(form).encode(), digest_size=16).digest()


def differences(recorded: Mark, given: Mark) -> set[str]:
    """Return what had to be left aside for two messages of other forms to be the same.

    ``arguments``, ``arguments_rewritten``, ``content_form``, ``ids``, ``empty``, ``cache_marks``,
    ``reasoning_dropped``. The order of keys, and fields of a tool call that say nothing, have no name.
    """
    found = {name for name, one, two in zip(_FORMS, recorded.forms, given.forms, strict=True) if one != two}
    if recorded.digest != given.digest:
        found.add("arguments_rewritten")
    return found | ({"reasoning_dropped"} if recorded.reasoning and not given.reasoning else set())


def rank_keys(marks: Iterable[Mark]) -> list[bytes]:
    """Return one key for each message: equal for messages that are the same.

    Ids of tool calls become their rank in the conversation, so that answers stay joined to their calls under any names.
    """
    return [one.digest if rank is None else one.digest + rank.to_bytes(4, signed=True) for one, rank in _ranked(marks)]


def canonical_order(marks: Iterable[Mark]) -> list[int]:
    """Return the positions of the messages with results of parallel calls in the order of the calls."""
    ranks = [-1 if rank is None else rank for _, rank in _ranked(marks)]
    order: list[int] = []
    for _, run in groupby(range(len(ranks)), key=lambda at: ranks[at] >= 0):
        order += sorted(run, key=lambda at: ranks[at] if ranks[at] >= 0 else at)
    return order


def keys(messages: Iterable[Mapping[str, Any]]) -> list[bytes]:
    """Return the keys of a conversation, in its canonical order."""
    marks = [mark(message) for message in messages]
    found = rank_keys(marks)
    return [found[at] for at in canonical_order(marks)]


def normal_forms(messages: Iterable[Mapping[str, Any]]) -> list[Message]:
    """Return what counts of each message, but for its reasoning, in the canonical order."""
    whole = list(messages)
    marks = [mark(message) for message in whole]
    ranks = [rank for _, rank in _ranked(marks)]
    forms = [
        _form(message) if rank is None else {**_form(message), "tool_call_id": rank}
        for message, rank in zip(whole, ranks, strict=True)
    ]
    return [forms[at] for at in canonical_order(marks)]


def _ranked(marks: Iterable[Mark]) -> Iterator[tuple[Mark, int | None]]:
    ranks: dict[str, int] = {}
    count = 0
    for one in marks:
        for call in one.calls:
            ranks[call] = count
            count += 1
        yield one, None if one.answers is None else ranks.get(one.answers, -1)


def first_difference(recorded: Sequence[Mapping[str, Any]], given: Sequence[Mapping[str, Any]]) -> str | None:
    """Return in words where ``given`` first differs from ``recorded``; None where it does not."""
    for index, (left, right) in enumerate(zip(normal_forms(recorded), normal_forms(given), strict=False)):
        if _text(left) != _text(right):
            name = next(key for key in [*left, *right] if _text(left.get(key)) != _text(right.get(key)))
            role = left.get("role")
            return f"message {index} ({role}): {name} {_apart(left.get(name), right.get(name))}"
    if len(recorded) != len(given):
        return f"{len(given)} messages, recorded were {len(recorded)}"
    return None


def _apart(left: object, right: object) -> str:
    one, two = (value if isinstance(value, str) else _text(value) for value in (left, right))
    at = next((n for n, (a, b) in enumerate(zip(one, two, strict=False)) if a != b), min(len(one), len(two)))
    start = max(0, at - 20)
    return f"differs at character {at}: recorded {one[start : at + 40]!r}, given {two[start : at + 40]!r}"


def _form(message: Mapping[str, Any]) -> Message:
    form: Message = {}
    for key, value in message.items():
        if key in _REASONING or key in ("content", "tool_calls", "tool_call_id") or key in _ALWAYS_IGNORED:
            continue
        if value is None or (key in _IGNORED and not value):
            continue
        form[key] = value
    content = _content_form(message.get("content"))
    if content:
        form["content"] = content
    calls = _dicts(message.get("tool_calls"))
    if calls:
        form["tool_calls"] = [_call_form(call) for call in calls]
    return form


def _content_form(content: Any) -> Any:
    """Text and a list of text parts are one; other parts stay parts, in order."""
    if not isinstance(content, list):
        return content or ""
    parts: list[Any] = []
    for part in cast("list[Any]", content):
        text = text_of_part(part)
        if text is None:
            parts.append(_without_marks(part))
        elif parts and isinstance(parts[-1], str):
            parts[-1] += PARTS + text
        else:
            parts.append(text)
    return parts[0] if len(parts) == 1 and isinstance(parts[0], str) else parts


def text_of_part(part: Any) -> str | None:
    """Return the text of a part of a content; None where it is of another kind."""
    if isinstance(part, str):
        return part
    if isinstance(part, dict):
        known = cast("Message", part)
        if known.get("type") in _TEXTS and isinstance(known.get("text"), str):
            return str(known["text"])
    return None


def _without_marks(part: Any) -> Any:
    if not isinstance(part, dict):
        return part
    return {key: value for key, value in cast("Message", part).items() if key not in _ALWAYS_IGNORED}


def _call_form(call: Message) -> Message:
    function = call.get("function")
    known = cast("Message", function) if isinstance(function, dict) else {}
    arguments: Any = known.get("arguments")
    if isinstance(arguments, str):
        with suppress(ValueError):  # broken JSON is what the model wrote: it counts as it stands
            arguments = json.loads(arguments) if arguments.strip() else {}
    return {"name": known.get("name"), "arguments": arguments}


def _dicts(value: Any) -> list[Message]:
    if not isinstance(value, list):
        return []
    return [cast("Message", item) for item in cast("list[Any]", value) if isinstance(item, dict)]


def _raw_arguments(message: Mapping[str, Any]) -> Any:
    return [cast("Message", call.get("function") or {}).get("arguments") for call in _dicts(message.get("tool_calls"))]


def _shape(message: Mapping[str, Any]) -> Any:
    """One text, or which parts."""
    content: Any = message.get("content")
    if not content or not isinstance(content, list):
        return "text"
    texts = [text_of_part(part) for part in cast("list[Any]", content)]
    return [None if text is None else len(text) for text in texts]


def _all_ids(message: Mapping[str, Any]) -> Any:
    return [message.get("tool_call_id"), [call.get("id") for call in _dicts(message.get("tool_calls"))]]


def _empty(message: Mapping[str, Any]) -> Any:
    fields = (*_IGNORED, *_REASONING, "content", "tool_calls")
    return {key: value for key, value in message.items() if value is None or (key in fields and not value)}


def _cache_marks(message: Mapping[str, Any]) -> Any:
    parts = [message, *_dicts(message.get("content")), *_dicts(message.get("tool_calls"))]
    marks = [{key: part[key] for key in sorted(_ALWAYS_IGNORED) if key in part} for part in parts]
    return [mark for mark in marks if mark]


_FORMS: Mapping[str, Callable[[Mapping[str, Any]], Any]] = {
    "arguments": _raw_arguments, "content_form": _shape, "ids": _all_ids, "empty": _empty, "cache_marks": _cache_marks,
}  # fmt: skip


def _text(form: object) -> str:
    """In JSON true is not 1, which for Python it is."""
    return json.dumps(form, sort_keys=True)
