"""What is remembered of conversations: keys and values by layer, bounded, the longest unused forgotten first.

A prompt that begins as something kept is computed from there on. A session's own next turn goes on in place; anything
else that shares its head (a sub-agent, another rollout of the group) gets a copy of that much.

Used by one thread.
"""

from __future__ import annotations

from collections.abc import Sequence

from orchard.gateway.engines.transformers_engine.libraries import Tensor, torch

_BLOCK = 256
"""Positions by which the room of a conversation grows."""
LEAST = 16
"""Ids that must be shared for a copy to be worth it."""


class Kept:
    """Keys and values of the ids of one conversation."""

    def __init__(self, session: str) -> None:
        self.session = session
        self.ids: list[int] = []
        """Those whose keys and values are here, in every layer."""
        self.room = 0
        """Positions that it has tensors for."""
        self._layers: dict[int, tuple[Tensor, Tensor]] = {}

    def write(self, layer: int, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Keep what one layer made of the ids after ``ids`` ([groups, count, width]); return all that it has kept."""
        start = len(self.ids)
        end = start + keys.shape[1]
        if layer not in self._layers:
            self._layers[layer] = (_empty(keys, self.room), _empty(values, self.room))
        held, worth = self._layers[layer]
        held[:, start:end], worth[:, start:end] = keys, values
        return held[:, :end], worth[:, :end]

    def resize(self, room: int) -> None:
        """Have tensors for ``room`` positions; ``ids`` that are kept stay."""
        self.room = room
        self._fill(self)

    def copy(self, source: Kept, count: int) -> None:
        """Begin with the first ``count`` ids of another."""
        self.ids = source.ids[:count]
        self._fill(source)

    def bytes_each(self) -> int:
        """Return how many bytes a position takes."""
        tensors = [tensor for pair in self._layers.values() for tensor in pair]
        return sum(tensor.shape[0] * tensor.shape[2] * tensor.element_size() for tensor in tensors)

    def _fill(self, source: Kept) -> None:
        count = len(self.ids)
        for layer, pair in source._layers.items():
            fresh = [_empty(tensor, self.room) for tensor in pair]
            for new, old in zip(fresh, pair, strict=True):
                new[:, :count] = old[:, :count]
            self._layers[layer] = (fresh[0], fresh[1])


class Memory:
    """All that is kept, at most ``positions`` ids of it."""

    def __init__(self, positions: int) -> None:
        self.positions = positions // _BLOCK * _BLOCK
        self._busy: set[Kept] = set()
        self._idle: dict[Kept, None] = {}
        """In the order of their last use."""

    @property
    def used(self) -> int:
        """Positions that are taken."""
        return sum(kept.room for kept in (*self._busy, *self._idle))

    def fits(self, length: int) -> bool:
        """Whether another conversation of ``length`` ids finds room beside those that were taken."""
        return _rounded(length) <= self.positions - sum(kept.room for kept in self._busy)

    def take(self, session: str, ids: Sequence[int]) -> Kept:
        """Return what is kept of a prompt's head, to go on from; at least the last id is left to compute."""
        head = list(ids[:-1])
        shared, best = max(
            ((shared_ids(kept.ids, head), kept) for kept in (*self._idle, *self._busy)),
            key=lambda each: (each[0], each[1].session == session, each[1] in self._idle),
            default=(0, None),
        )
        if best is not None and best in self._idle and best.session == session and shared == len(best.ids):
            del self._idle[best]
            self._busy.add(best)
            self.reserve(best, len(ids))
            return best
        kept = Kept(session)
        self._busy.add(kept)
        if best is None or shared < LEAST:
            self.reserve(kept, len(ids))
        else:
            self._copy(kept, len(ids), best, shared)
        return kept

    def _copy(self, kept: Kept, length: int, source: Kept, count: int) -> None:
        idle = source in self._idle
        if idle:  # while it is read it must not be forgotten
            del self._idle[source]
            self._busy.add(source)
        if self.reserve(kept, length):
            kept.copy(source, count)
        if idle:
            self.give_back(source)

    def reserve(self, kept: Kept, length: int) -> bool:
        """Make room for ``length`` ids in one that was taken, forgetting unused ones; False if that is not enough."""
        room = _rounded(length)
        if room <= kept.room:
            return True
        free = self.positions - self.used
        while free < room - kept.room and self._idle:
            forgotten = next(iter(self._idle))
            del self._idle[forgotten]
            free += forgotten.room
        if free < room - kept.room:
            return False
        kept.resize(room)
        return True

    def give_back(self, kept: Kept) -> None:
        """Keep it for whoever comes next."""
        self._busy.discard(kept)
        if kept.ids:
            self._idle[kept] = None

    def drop(self, kept: Kept) -> None:
        """Forget one that was taken."""
        self._busy.discard(kept)

    def forget(self) -> None:
        """Forget everything: the weights that made it are gone. What was taken keeps its room, without content."""
        self._idle.clear()
        for kept in self._busy:
            kept.ids = []

    def clear(self) -> None:
        """Forget everything, what was taken included."""
        self._idle.clear()
        self._busy.clear()


def _empty(like: Tensor, room: int) -> Tensor:
    return torch().empty((like.shape[0], room, like.shape[2]), dtype=like.dtype, device=like.device)


def _rounded(length: int) -> int:
    return -(-length // _BLOCK) * _BLOCK


def shared_ids(one: Sequence[int], other: Sequence[int]) -> int:
    """Return the length of the common head, by halving: whole slices compare at the speed of C."""
    low, high = 0, min(len(one), len(other))
    while low < high:
        middle = (low + high + 1) // 2
        if one[low:middle] == other[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low
