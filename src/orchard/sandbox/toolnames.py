"""Names of tool layers: ``NAME@sha256:DIGEST``, and where a sandbox has them."""
# pyright: reportUnnecessaryIsInstance=false
# (values of callers are checked at run time here, whatever their annotation says)

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from orchard.core.errors import InvalidArgument

TOOLS = "/opt/orchard/tools"
"""Folder of a sandbox in which each layer lies under its name."""
_NAME = re.compile(r"[a-z0-9]+([._-][a-z0-9]+)*")  # what a repository of a registry may be called
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")
_LONGEST = 63


@dataclass(frozen=True)
class Tool:
    """One tool layer by name and digest; as text, ``NAME@sha256:…``."""

    name: str
    digest: str

    def __str__(self) -> str:
        return f"{self.name}@{self.digest}"

    @property
    def mount(self) -> str:
        """Return where a sandbox has it."""
        return f"{TOOLS}/{self.name}"


def parse_tools(texts: Sequence[str]) -> list[Tool]:
    """Return the layers that ``texts`` name, in their order.

    Raises:
        InvalidArgument: one is no ``NAME@sha256:DIGEST``, or two have one name.
    """
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise InvalidArgument(f"tools must be a list of NAME@sha256:DIGEST, not {texts!r}", field="tools")
    found = [parse_tool(text) for text in texts]
    names = [tool.name for tool in found]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise InvalidArgument(f"tools: {', '.join(twice)} is there more than once", field="tools")
    return found


def parse_tool(text: str) -> Tool:
    """Return the layer that ``text`` names.

    Raises:
        InvalidArgument: it is no ``NAME@sha256:DIGEST``.
    """
    name, _, digest = text.partition("@") if isinstance(text, str) else ("", "", "")
    if not _DIGEST.fullmatch(digest):
        raise InvalidArgument(f"tools: {text!r} is no NAME@sha256:DIGEST", field="tools")
    return Tool(check_name(name), digest)


def check_name(name: str) -> str:
    """Return ``name`` if a tool layer may be called so.

    Raises:
        InvalidArgument: it may not.
    """
    if not _NAME.fullmatch(name) or len(name) > _LONGEST:
        hint = f"lower-case letters and digits with . _ - between them, at most {_LONGEST}"
        raise InvalidArgument(f"{name!r} is no name of a tool layer", field="tools", hint=hint)
    return name


def with_tools(env: Mapping[str, str], tools: Sequence[str]) -> dict[str, str]:
    """Return ``env``, whose PATH is set, with the programs of ``tools`` after all that the image has."""
    ends = [f"{tool.mount}/bin" for tool in parse_tools(tools)]
    return {**env, "PATH": ":".join([env["PATH"], *ends])}
