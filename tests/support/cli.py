"""The ``orchard`` command, run in this process on its real descriptors: as a program, without a program's start."""

from __future__ import annotations

import os
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from unittest.mock import patch

from orchard.cli import console
from orchard.cli.main import run


@dataclass(frozen=True)
class Done:
    """What a run left."""

    returncode: int
    stdout: bytes
    stderr: bytes


@contextmanager
def _descriptors(*files: int) -> Iterator[None]:
    """Put ``files`` in the place of descriptors 0, 1 and 2, and their text streams in that of ``sys``'s."""
    saved = [os.dup(number) for number in range(3)]
    streams = sys.stdin, sys.stdout, sys.stderr
    try:
        for number, file in enumerate(files):
            os.dup2(file, number)
        with open(0, closefd=False) as given, open(1, "w", closefd=False) as out, open(2, "w", closefd=False) as err:
            sys.stdin, sys.stdout, sys.stderr = given, out, err
            yield
    finally:
        sys.stdin, sys.stdout, sys.stderr = streams
        for number, copy in enumerate(saved):
            os.dup2(copy, number)
            os.close(copy)


def orchard(*argv: str, env: Mapping[str, str], stdin: bytes = b"") -> Done:
    """Run ``orchard ARGV`` with ``env`` in place of every ``ORCHARD_*`` variable."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ORCHARD_")}
    with tempfile.TemporaryFile() as given, tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
        given.write(stdin)
        given.seek(0)
        code = 0
        with (
            patch.dict(os.environ, {**kept, **env}, clear=True),
            patch.object(sys, "argv", ["orchard", *argv]),
            _descriptors(given.fileno(), out.fileno(), err.fileno()),
        ):
            try:
                run()
            except SystemExit as end:
                code = end.code if isinstance(end.code, int) else int(end.code is not None)
            finally:
                console.set_debug(False)
        out.seek(0)
        err.seek(0)
        return Done(code, out.read(), err.read())
