"""How a sandbox must behave, as checks that run unchanged on every backend.

``run(context)`` makes every check and returns a report; ``CHECKS`` are all checks. The behaviours have numbers; each
number has one check or more. A backend names what it cannot do in ``Capabilities.exceptions``.
"""

from orchard.sandbox.conformance import arguments, commands, files, images, life, limits, network, output, service
from orchard.sandbox.conformance.context import Context, NotApplicable, NotHeld
from orchard.sandbox.conformance.runner import LATER, Outcome, Report, run, run_check
from orchard.sandbox.conformance.suite import CHECKS, Check

PARTS = (commands, output, arguments, files, life, limits, network, images, service)
"""The modules whose checks are registered, in the order of the lines."""

__all__ = [
    "CHECKS", "LATER", "PARTS", "Check", "Context", "NotApplicable", "NotHeld", "Outcome", "Report", "run", "run_check",
]  # fmt: skip
