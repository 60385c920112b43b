"""Group commit: a thread of its own writes whatever has gathered as one frame, syncs once, and tells everybody."""

from __future__ import annotations

import os
import threading
from concurrent.futures import Future
from pathlib import Path

from orchard.core.errors import StoreFailed
from orchard.trajectories.segments import SegmentWriter

_FRAME_BYTES = 32 << 20
"""A frame holds at most about this much text, so that reading one stays cheap."""


class Committer:
    """Takes lines from any thread or event loop; each future is done when its line is durable."""

    def __init__(self, folder: Path, segment_bytes: int) -> None:
        self._folder, self._segment_bytes = folder, segment_bytes
        self._closed = False
        self._begin()

    def _begin(self) -> None:
        self._owner = os.getpid()
        self._writer = SegmentWriter(self._folder, self._segment_bytes)
        self._pending: list[tuple[bytes, Future[None]]] = []
        self._wake = threading.Condition()
        self._thread: threading.Thread | None = None

    def submit(self, line: bytes) -> Future[None]:
        """Queue one line.

        Raises:
            StoreFailed: ``closed``.
        """
        if self._owner != os.getpid():
            self._begin()  # a fork has no thread, and must not write to its parent's file
        future: Future[None] = Future()
        with self._wake:
            if self._closed:
                raise StoreFailed("the store is closed", reason="closed")
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="orchard-store", daemon=True)
                self._thread.start()
            self._pending.append((line, future))
            self._wake.notify()
        return future

    def close(self) -> None:
        """Write what is pending, then end the thread."""
        with self._wake:
            self._closed = True
            self._wake.notify()
            thread = self._thread
        if thread is not None:
            thread.join()
        self._writer.close()

    def _run(self) -> None:
        while True:
            with self._wake:
                while not self._pending and not self._closed:
                    self._wake.wait()
                batch = self._take()
            if not batch:
                return
            self._commit(batch)

    def _take(self) -> list[tuple[bytes, Future[None]]]:
        size = count = 0
        while count < len(self._pending) and size < _FRAME_BYTES:
            size += len(self._pending[count][0])
            count += 1
        batch, self._pending = self._pending[:count], self._pending[count:]
        return batch

    def _commit(self, batch: list[tuple[bytes, Future[None]]]) -> None:
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
