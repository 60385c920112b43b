"""Harnesses by name. Adding one is a file in this room and a line here."""

from __future__ import annotations

import importlib
from collections.abc import Collection, Mapping
from typing import Any

from orchard.core.errors import InvalidArgument
from orchard.harness.protocol import Harness

HARNESSES = {
    "bash-loop": "orchard.harness.bash_loop:BashLoop",
    "claude-code": "orchard.harness.claude_code:ClaudeCode",
    "codex": "orchard.harness.codex:Codex",
    "command": "orchard.harness.command:CommandHarness",
    "hermes-agent": "orchard.harness.hermes_agent:HermesAgent",
    "kimi-code": "orchard.harness.kimi_code:KimiCode",
    "mini-swe-agent": "orchard.harness.mini_swe_agent.driver:MiniSweAgent",
    "openclaw": "orchard.harness.openclaw:OpenClaw",
    "openhands": "orchard.harness.openhands.driver:OpenHands",
    "opencode": "orchard.harness.opencode:OpenCode",
    "pi": "orchard.harness.pi:Pi",
    "zeroclaw": "orchard.harness.zeroclaw:ZeroClaw",
}


def create_harness(name: str) -> Harness:
    """Return a new driver of the harness ``name``.

    Raises:
        InvalidArgument: no such harness; the message lists those there are.
    """
    if name not in HARNESSES:
        raise InvalidArgument(f"no harness {name!r}; there are {', '.join(sorted(HARNESSES))}", field="harness")
    module, _, attribute = HARNESSES[name].partition(":")
    return getattr(importlib.import_module(module), attribute)()


def check_options(harness: str, config: Mapping[str, Any], known: Collection[str]) -> None:
    """Return if ``config`` holds ``known`` options only, and ``sampling``, where it is there, is a mapping.

    Raises:
        InvalidArgument: it is not so.
    """
    unknown = sorted(set(config) - set(known))
    if unknown:
        hint = f"it takes {', '.join(sorted(known))}"
        raise InvalidArgument(f"{harness} has no option {', '.join(unknown)}", field="config", hint=hint)
    if not isinstance(config.get("sampling", {}), Mapping):
        raise InvalidArgument(f"{harness}: sampling must map names to values", field="config")
