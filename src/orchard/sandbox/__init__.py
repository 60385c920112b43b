"""Sandboxes: one small protocol, its backends, and the conformance suite that judges them."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from orchard.sandbox._sync import (
        SyncFiles,
        SyncOrchard,
        SyncOwnedSandbox,
        SyncOwnedSandboxes,
        SyncProcess,
        SyncSandbox,
        SyncTunnel,
    )
    from orchard.sandbox.box import Sandbox
    from orchard.sandbox.commands import CommandOptions, Output, ProcessStatus
    from orchard.sandbox.diff import Diff
    from orchard.sandbox.files import Change, Entry, Files, Written
    from orchard.sandbox.group import OwnedSandboxes
    from orchard.sandbox.manifest import Baseline
    from orchard.sandbox.orchard import Orchard, OwnedSandbox, SandboxOptions
    from orchard.sandbox.process import Process
    from orchard.sandbox.protocol import Backend, Capabilities
    from orchard.sandbox.relay import Reverse
    from orchard.sandbox.tree import Transfer
    from orchard.sandbox.tunnel import Tunnel
    from orchard.sandbox.types import Endpoint, Page, Result, SandboxInfo, SandboxSpec, State

_WHERE = {
    "Backend": "protocol", "Capabilities": "protocol", "Change": "files", "CommandOptions": "commands",
    "Endpoint": "types", "Entry": "files", "Files": "files", "Orchard": "orchard", "Output": "commands",
    "OwnedSandbox": "orchard", "OwnedSandboxes": "group", "Page": "types", "Process": "process",
    "ProcessStatus": "commands", "Result": "types",
    "Sandbox": "box", "SandboxInfo": "types", "SandboxOptions": "orchard", "SandboxSpec": "types", "State": "types",
    "Written": "files", "Baseline": "manifest", "Diff": "diff", "Reverse": "relay", "Transfer": "tree",
    "Tunnel": "tunnel", "SyncFiles": "_sync", "SyncOrchard": "_sync", "SyncOwnedSandbox": "_sync",
    "SyncOwnedSandboxes": "_sync",
    "SyncProcess": "_sync", "SyncSandbox": "_sync", "SyncTunnel": "_sync",
}  # fmt: skip

__all__ = [
    "Backend",
    "Baseline",
    "Capabilities",
    "Change",
    "CommandOptions",
    "Diff",
    "Endpoint",
    "Entry",
    "Files",
    "Orchard",
    "Output",
    "OwnedSandbox",
    "OwnedSandboxes",
    "Page",
    "Process",
    "ProcessStatus",
    "Result",
    "Reverse",
    "Sandbox",
    "SandboxInfo",
    "SandboxOptions",
    "SandboxSpec",
    "State",
    "SyncFiles",
    "SyncOrchard",
    "SyncOwnedSandbox",
    "SyncOwnedSandboxes",
    "SyncProcess",
    "SyncSandbox",
    "SyncTunnel",
    "Transfer",
    "Tunnel",
    "Written",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used."""
    if name not in _WHERE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_WHERE[name]}"), name)
