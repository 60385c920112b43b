"""Sandboxes: one small protocol, its backends, and the conformance suite that judges them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchard.sandbox.box import Sandbox
    from orchard.sandbox.commands import CommandOptions, Output, ProcessStatus
    from orchard.sandbox.files import Change, Entry, Files, Written
    from orchard.sandbox.orchard import Orchard, OwnedSandbox, SandboxOptions
    from orchard.sandbox.process import Process
    from orchard.sandbox.protocol import Backend, Capabilities
    from orchard.sandbox.types import Endpoint, Page, Result, SandboxInfo, SandboxSpec, State

_WHERE = {
    "Backend": "protocol", "Capabilities": "protocol", "Change": "files", "CommandOptions": "commands",
    "Endpoint": "types", "Entry": "files", "Files": "files", "Orchard": "orchard", "Output": "commands",
    "OwnedSandbox": "orchard", "Page": "types", "Process": "process", "ProcessStatus": "commands", "Result": "types",
    "Sandbox": "box", "SandboxInfo": "types", "SandboxOptions": "orchard", "SandboxSpec": "types", "State": "types",
    "Written": "files",
}  # fmt: skip

__all__ = [
    "Backend", "Capabilities", "Change", "CommandOptions", "Endpoint", "Entry", "Files", "Orchard", "Output",
    "OwnedSandbox", "Page", "Process", "ProcessStatus", "Result", "Sandbox", "SandboxInfo", "SandboxOptions",
    "SandboxSpec", "State", "Written",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
