"""Where mini-swe-agent lives on this machine, and at which version."""

from __future__ import annotations

from pathlib import Path

from orchard.harness.beside.environment import Environment

MINI_SWE_AGENT = Environment("mini-swe-agent", "2.4.6", Path(__file__).with_name("constraints.txt"))
