"""Processes known by pid and start time."""

import threading

from orchard.sandbox.local.process import Target


def test_a_number_that_is_a_thread_of_another_process_by_now_is_a_process_that_has_ended() -> None:
    done = threading.Event()
    thread = threading.Thread(target=done.wait)
    thread.start()
    assert thread.native_id is not None
    try:
        assert Target(thread.native_id, started=1).kill() is True
        assert thread.is_alive()
    finally:
        done.set()
        thread.join()
