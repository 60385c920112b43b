"""The entry point of ``orchard``: it imports nothing, so that Ctrl-C is heard while the rest is imported."""

from __future__ import annotations

import sys


def run() -> None:
    """Import the command line and run it."""
    try:
        from orchard.cli.main import run as run_main
    except KeyboardInterrupt:
        sys.exit(130)
    run_main()
