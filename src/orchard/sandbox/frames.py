"""The frame stream of a process: ``type u8 | offset u64 BE | length u32 BE | payload``."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Literal

StreamName = Literal["stdout", "stderr"]
STREAMS: dict[int, StreamName] = {1: "stdout", 2: "stderr"}

_HEAD = struct.Struct(">BQI")
_GAP = struct.Struct(">BQ")


class Kind(IntEnum):
    """What a frame carries."""

    STDOUT = 1
    STDERR = 2
    STATUS = 3
    GAP = 4
    KEEPALIVE = 5
    EXIT = 6


@dataclass(frozen=True, slots=True)
class Frame:
    """One frame; ``offset`` is the position of the payload's first byte in its stream."""

    kind: int
    offset: int
    payload: bytes

    def gap(self) -> tuple[StreamName, int]:
        """Return (stream, next offset) of a ``GAP``: bytes from ``offset`` up to it are not sent."""
        number, following = _GAP.unpack(self.payload)
        return STREAMS[number], following


class FrameDecoder:
    """Turns chunks of any size into frames."""

    def __init__(self) -> None:
        self._rest = bytearray()

    def feed(self, chunk: bytes) -> list[Frame]:
        """Return the frames that ``chunk`` completes."""
        data = self._rest
        data += chunk
        frames: list[Frame] = []
        at, size = 0, len(data)
        with memoryview(data) as view:
            while size - at >= _HEAD.size:
                kind, offset, length = _HEAD.unpack_from(view, at)
                end = at + _HEAD.size + length
                if end > size:
                    break
                frames.append(Frame(kind, offset, bytes(view[at + _HEAD.size : end])))
                at = end
        del data[:at]
        return frames
