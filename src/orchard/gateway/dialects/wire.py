"""What dialects share: reading a body strictly, told by a table of its fields, and writing server-sent events."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, cast

from orchard.core.errors import InvalidArgument
from orchard.core.text import carried
from orchard.trajectories.messages import Message

ANY = "*"
"""Name of a table's row for whatever it does not name."""


@dataclass(frozen=True)
class Field:
    """What becomes of one field, block or tool of a request; a row of ``docs/dialects.md``."""

    how: Literal["passed", "translated", "dropped", "refused"]
    note: str = ""


def passed(note: str = "as it is") -> Field:
    """Return the row of what the engine gets under the same name."""
    return Field("passed", note)


def translated(note: str) -> Field:
    """Return the row of what is said in other words."""
    return Field("translated", note)


def dropped(note: str = "") -> Field:
    """Return the row of what no engine could use: its name goes into the record."""
    return Field("dropped", note)


def refused(note: str) -> Field:
    """Return the row of what ends a request with 400."""
    return Field("refused", note)


class Sorting:
    """Reads a request by a dialect's table, and keeps the names of what it had to drop.

    Args:
        fields: rows by name: fields of the body as ``NAME``, parts of one as ``FIELD.TYPE``, ``FIELD.*`` for any other.
    """

    def __init__(self, fields: Mapping[str, Field]) -> None:
        self._fields = fields
        self._dropped: dict[str, None] = {}

    @property
    def dropped(self) -> tuple[str, ...]:
        """Names of what was dropped, each once."""
        return tuple(self._dropped)

    def params(self, body: Message) -> dict[str, Any]:
        """Return the fields of a body that are passed as they are.

        Raises:
            InvalidArgument: one is refused.
        """
        params: dict[str, Any] = {}
        for name, value in body.items():
            row = self._fields.get(name, self._fields[ANY])
            if row.how == "passed" and value is not None:
                params[name] = value
            elif row.how in ("dropped", "refused") and not _says_nothing(value):
                self._reject(name, row, name)
        return params

    def takes(self, field: str, kind: str, name: str = "") -> bool:
        """Return whether a part of this kind is to be translated; if it is dropped, keep ``name`` (else its kind).

        Raises:
            InvalidArgument: it is refused.
        """
        row = self._fields.get(f"{field}.{kind}", self._fields[f"{field}.{ANY}"])
        if row.how == "translated":
            return True
        self._reject(f"{field}.{name or kind}", row, field)
        return False

    def drop(self, name: str) -> None:
        """Keep a name."""
        self._dropped[carried(name)[:200]] = None

    def _reject(self, name: str, row: Field, field: str) -> None:
        if row.how == "refused":
            raise InvalidArgument(f"{name[:200]} is not served here: {row.note}", field=field)
        self.drop(name)


def _says_nothing(value: Any) -> bool:
    return value is None or value is False or (isinstance(value, str | list | dict) and not value)


def json_object(body: bytes) -> dict[str, Any]:
    """Return a body that must be one JSON object.

    Raises:
        InvalidArgument: it is not.
    """
    try:
        facts = carried(loads(body))
    except (ValueError, RecursionError) as error:
        raise InvalidArgument(f"the body is not JSON: {error}") from None
    if not isinstance(facts, dict):
        raise InvalidArgument("the body must be a JSON object")
    return cast("dict[str, Any]", facts)


def loads(text: bytes | str) -> Any:
    """Read JSON without what only Python takes for it, and would write again: NaN, and numbers beyond all bounds.

    Raises:
        ValueError: it is not JSON.
    """
    return json.loads(text, parse_float=_finite, parse_constant=_finite)


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is no number that JSON can say")
    return number


def model_name(value: Any) -> str:
    """Return the name of a model as a request says it.

    Raises:
        InvalidArgument: no name looks like that.
    """
    text = str(value or "")
    if not text.isprintable() or "\ufffd" in text:
        raise InvalidArgument("the model's name holds characters that no name has", field="model")
    return text


def objects(value: Any, field: str) -> list[Message]:
    """Return a list of JSON objects.

    Raises:
        InvalidArgument: it is none; ``field`` is named.
    """
    return cast("list[Message]", _listed(value, dict, field, "objects"))


def text_of(value: Any, field: str) -> str:
    """Return a text.

    Raises:
        InvalidArgument: it is none; ``field`` is named.
    """
    if not isinstance(value, str):
        raise InvalidArgument(f"{field} must be text", field=field)
    return value


def flag(value: Any, field: str) -> bool:
    """Return a truth value; one that is absent or null is false.

    Raises:
        InvalidArgument: it is anything else, the text "false" say; ``field`` is named.
    """
    if value is not None and not isinstance(value, bool):
        raise InvalidArgument(f"{field} must be true or false", field=field)
    return bool(value)


def texts(value: Any, field: str) -> list[str]:
    """Return a list of texts.

    Raises:
        InvalidArgument: it is none; ``field`` is named.
    """
    return cast("list[str]", _listed(value, str, field, "texts"))


def _listed(value: Any, kind: type, field: str, what: str) -> list[Any]:
    if not isinstance(value, list) or not all(isinstance(item, kind) for item in cast("list[Any]", value)):
        raise InvalidArgument(f"{field} must be a list of {what}", field=field)
    return cast("list[Any]", value)


def object_of(value: Any) -> Message:
    """Return an object, an empty one for anything else."""
    return cast("Message", value) if isinstance(value, dict) else {}


def content_of(parts: list[Message]) -> Any:
    """Return the parts of a message's content in the common form: the text itself where that is all."""
    if len(parts) == 1 and parts[0]["type"] == "text":
        return parts[0]["text"]
    return parts or ""


def call_of(call_id: str, name: str, arguments: str) -> Message:
    """Return a tool call in the common form."""
    return {"id": call_id, "type": "function", "function": {"name": name, "arguments": arguments}}


def event(facts: Mapping[str, Any], name: str = "") -> bytes:
    """Return one server-sent event."""
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + json.dumps(facts).encode() + b"\n\n"
