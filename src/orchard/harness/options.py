"""Options of a harness as a table: each name with the kind of value that it takes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from orchard.core.errors import InvalidArgument
from orchard.harness.registry import check_options

Kind = type | tuple[str, ...]
"""``bool``, ``str``; ``int`` (from 1 on); ``list`` (of texts); ``dict`` (a mapping of texts to anything); or the texts
to choose from."""
_WORDS = {bool: "true or false", str: "a text", int: "a number from 1 on", list: "a list of texts", dict: "a mapping"}


def check_kinds(harness: str, config: Mapping[str, Any], kinds: Mapping[str, Kind]) -> None:
    """Return if ``config`` holds only options of ``kinds``, each with a value of its kind.

    Raises:
        InvalidArgument: it does not; the message names the option, and what it takes.
    """
    check_options(harness, config, kinds)
    for name, value in config.items():
        kind = kinds[name]
        if not _fits(value, kind):
            takes = _WORDS[kind] if isinstance(kind, type) else f"one of {', '.join(kind)}"
            raise InvalidArgument(f"{harness}: {name} must be {takes}, not {value!r}", field="config")


def _fits(value: Any, kind: Kind) -> bool:
    if isinstance(kind, tuple):
        return isinstance(value, str) and value in kind
    if kind is int:
        return isinstance(value, int) and not isinstance(value, bool) and value > 0
    if kind is list:
        return isinstance(value, list | tuple) and all(isinstance(one, str) for one in value)
    if kind is dict:
        return isinstance(value, Mapping) and all(isinstance(one, str) for one in value)
    return isinstance(value, kind)
