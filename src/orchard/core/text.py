"""Text that UTF-8 can carry: a lone half of a surrogate pair becomes U+FFFD, as decoders do with any broken character.

JSON's escapes can say a half, and models do; it breaks at the first ``encode``, and most readers of JSON refuse it.
"""

from __future__ import annotations

import re
from typing import Any, TypeVar, cast

T = TypeVar("T")
_HALF = re.compile("[\ud800-\udfff]")


def carried(value: T) -> T:
    """Return ``value`` (JSON: text, lists, objects) with each half in any of its texts replaced."""
    return cast("T", _carried(value))


def _carried(value: Any) -> Any:
    if isinstance(value, str):
        return value if value.isascii() else _HALF.sub("\ufffd", value)
    if isinstance(value, list):
        return [_carried(item) for item in cast("list[Any]", value)]
    if isinstance(value, dict):
        return {_carried(key): _carried(item) for key, item in cast("dict[Any, Any]", value).items()}
    return value
