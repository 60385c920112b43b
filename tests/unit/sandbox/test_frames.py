"""Frames arrive whole however the network slices them, and their bounded view is exact."""

import json
import struct

from hypothesis import given
from hypothesis import strategies as st

from orchard.sandbox.commands import Bounded
from orchard.sandbox.frames import Frame, FrameDecoder, Kind

EXIT = {
    "id": "op-1", "pid": 5, "state": "exited", "exit_code": 0, "signal": None, "stdout_bytes": 0, "stderr_bytes": 0,
    "duration_s": 0.5,
}  # fmt: skip


def wire(frame: Frame) -> bytes:
    return struct.pack(">BQI", frame.kind, frame.offset, len(frame.payload)) + frame.payload


def gap(stream: int, start: int, end: int) -> Frame:
    return Frame(Kind.GAP, start, struct.pack(">BQ", stream, end))


@given(
    st.lists(st.builds(Frame, st.integers(1, 6), st.integers(0, 2**64 - 1), st.binary(max_size=50)), max_size=20),
    st.lists(st.integers(1, 40)),
)
def test_decoding_does_not_depend_on_the_slices(frames: list[Frame], cuts: list[int]) -> None:
    data = b"".join(wire(frame) for frame in frames)
    decoder, found = FrameDecoder(), list[Frame]()
    for cut in [*cuts, len(data)]:
        found += decoder.feed(data[:cut])
        data = data[cut:]
    assert found == frames


def test_bounded_view_drops_repeats_and_marks_the_cut() -> None:
    view = Bounded()
    frames = [
        Frame(Kind.STATUS, 0, b"{}"), Frame(Kind.STDOUT, 0, b"abc"),
        Frame(Kind.STATUS, 0, b"{}"), Frame(Kind.STDOUT, 1, b"bcde"),  # another connection, which repeats
        Frame(Kind.STDERR, 0, b"e"), gap(1, 5, 100), Frame(Kind.STDOUT, 100, b"tail"),
    ]  # fmt: skip
    assert [view.take(frame) for frame in frames] == [None] * len(frames)
    result = view.take(Frame(Kind.EXIT, 0, json.dumps({**EXIT, "stdout_bytes": 104, "stderr_bytes": 1}).encode()))
    assert result is not None
    assert (result.stdout, result.stderr) == (b"abcdetail", b"e")
    assert (result.stdout_cut, result.stderr_cut) == (5, None)
    assert (result.stdout_dropped, result.truncated, result.exit_code) == (95, True, 0)
