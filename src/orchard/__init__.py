"""Orchard: tasks, an agent harness and a model in; trajectories and a better model out."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchard.core import errors
    from orchard.core.errors import OrchardError
    from orchard.sandbox._sync import SyncOrchard, SyncSandbox
    from orchard.sandbox.box import Sandbox
    from orchard.sandbox.orchard import Orchard
    from orchard.sandbox.types import Result

__all__ = ["Orchard", "OrchardError", "Result", "Sandbox", "SyncOrchard", "SyncSandbox", "errors"]

_WHERE = {
    "Orchard": "orchard.sandbox.orchard", "OrchardError": "orchard.core.errors", "Result": "orchard.sandbox.types",
    "Sandbox": "orchard.sandbox.box", "SyncOrchard": "orchard.sandbox._sync", "SyncSandbox": "orchard.sandbox._sync",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import orchard`` costs nothing."""
    if name == "errors":
        return importlib.import_module("orchard.core.errors")
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_WHERE[name]), name)
