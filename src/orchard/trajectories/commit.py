"""Group commit: a thread of its own writes whatever has gathered as one frame, syncs once, and tells everybody."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from pathlib import Path
from queue import SimpleQueue

from orchard.core.errors import StoreFailed
from orchard.trajectories.segments import SegmentWriter

_FRAME_BYTES = 32 << 20
"""A frame holds at most about this much text, so that reading one stays cheap."""

_Line = tuple[bytes, "Future[None]"]


class Committer:
    """Takes lines from any thread or event loop; each future is done when its line is durable."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._writer = SegmentWriter(self._folder, self._segment_bytes)
        self._pending: SimpleQueue[_Line | None] = SimpleQueue()
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def submit(self, line: bytes) -> Future[None]:
        """Queue one line.

        Raises:
            StoreFailed: ``closed``.
        """
        if self._owner != os.getpid():
            self._begin()  # a fork has no thread, and must not write to its parent's file
        future: Future[None] = Future()
        with self._lock:
            if self._closed:
                raise StoreFailed("the store is closed", reason="closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="orchard-store", daemon=True)
                self._thread.start()
            self._pending.put((line, future))
        return future

    def close(self) -> None:
        """Write what is pending, then end the thread."""
        with self._lock:
            self._closed = True
            self._pending.put(None)  # the last one: what comes later is refused
            thread = self._thread
        if thread is not None:
            thread.join()
        self._writer.close()

    def _run(self) -> None:
        open_ = True
        while open_:
            batch, open_ = self._take()
            if batch:
                self._commit(batch)

    def _take(self) -> tuple[list[_Line], bool]:
        """Wait for a line, and return it with all that have gathered behind it, and whether more may come."""
        batch: list[_Line] = []
        size = 0
        while (line := self._pending.get()) is not None:
            batch.append(line)
            size += len(line[0])
            if size >= _FRAME_BYTES or self._pending.empty():  # nobody else takes from it
                return batch, True
        return batch, False

    def _commit(self, batch: list[_Line]) -> None:
        # From here on a waiter cannot cancel: the line is written whether or not he still waits.
        live = [item for item in batch if item[1].set_running_or_notify_cancel()]
        lines = b"".join(line for line, _ in batch)
        try:
            self._writer.append(lines)
        except Exception as error:  # noqa: BLE001 — the seam of the writer thread: whatever it is reaches every waiter
            for _, future in live:
                future.set_exception(error)
            return
        for _, future in live:
            future.set_result(None)
