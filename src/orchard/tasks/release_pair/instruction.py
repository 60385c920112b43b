"""The words of a release-pair task: a fixed frame around what the project says of its release."""

from __future__ import annotations

from orchard.tasks.release_pair.pairs import Pair

_FRAME = """\
The folder {workdir} holds the source of the Python library {package}, version {old}, as a git repository. The
library is installed from there in development mode.

The project's notes on what changed afterwards say:

{changes}

In this copy none of that is done yet. Change the library's code in {workdir} so that it behaves as these notes
describe, without breaking what they leave alone. Your work is judged by tests that you do not see: the project's own
for what changed, and the present ones that still apply. Changes to tests or to settings of pytest do not count.
`python -m pytest` runs the present tests. There is no network.
"""


def of(pair: Pair, changes: str, workdir: str) -> str:
    """Return the instruction. ``changes`` is the cleaned changelog entry; nothing of the patch or the tests goes in."""
    quoted = "\n".join(f"    {line}".rstrip() for line in changes.splitlines())
    return _FRAME.format(workdir=workdir, package=pair.package, old=pair.old, changes=quoted)
