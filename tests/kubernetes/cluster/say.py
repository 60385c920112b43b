"""What the cluster's targets tell a person."""

import sys


def say(line: str) -> None:
    """Write one line of progress."""
    sys.stderr.write(f"cluster: {line}\n")
    sys.stderr.flush()
