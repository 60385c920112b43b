"""Token ids of a session's conversations in memory: each call holds only what it adds to its parent's."""

from __future__ import annotations

from array import array
from collections.abc import Sequence


class SharedIds:
    """The ids of one conversation.

    Args:
        parent: the conversation it keeps something of.
        kept: how many ids of its beginning are the parent's.
        rest: those after them.
    """

    __slots__ = ("_kept", "_parent", "_rest")

    def __init__(self, parent: SharedIds | None, kept: int, rest: Sequence[int]) -> None:
        self._parent = parent if kept else None
        self._kept = kept if parent is not None else 0
        self._rest = array("i", rest)

    def __len__(self) -> int:
        return self._kept + len(self._rest)

    def whole(self) -> array[int]:
        """Return all of them, in an array of its own."""
        pieces: list[array[int]] = []
        current, end = self, len(self)
        while True:
            pieces.append(current._rest[: max(0, end - current._kept)])
            end = min(end, current._kept)
            if current._parent is None:
                break
            current = current._parent
        found = array("i")
        for piece in reversed(pieces):
            found += piece
        return found

    def common(self, other: Sequence[int]) -> int:
        """Return how many ids at the beginning are the same in ``other``."""
        mine, theirs = self.whole(), array("i", other)
        low, high = 0, min(len(mine), len(theirs))
        while low < high:  # up to ``low`` they are the same; the first guess is that one begins with the other
            middle = high if low == 0 and high == min(len(mine), len(theirs)) else (low + high + 1) // 2
            if mine[low:middle] == theirs[low:middle]:
                low = middle
            else:
                high = middle - 1
        return low
