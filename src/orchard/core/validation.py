"""What a validation of pydantic found wrong, in words for whoever wrote the value."""

from collections.abc import Sequence
from typing import Any


def first_fault(errors: Sequence[Any]) -> tuple[str, str]:
    """Return where the first of ``ValidationError.errors()`` is, its keys joined by dots, and what it says.

    A refusal by a validator of ours is told in its own words, without pydantic's mark before them.
    """
    first = errors[0]
    raised = first.get("ctx", {}).get("error")
    return ".".join(str(part) for part in first["loc"]), str(raised) if raised else str(first["msg"])
