"""Prices: a dated catalogue of nodes and of services that bill a sandbox, each number with its source."""

from __future__ import annotations

import tomllib
from datetime import date
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from orchard.core.errors import InvalidArgument
from orchard.core.validation import first_fault

BUILT_IN = Path(__file__).with_name("prices.toml")
Positive = Annotated[float, Field(ge=1e-9, le=1e9)]
Amount = Annotated[float, Field(ge=0, le=1e9)]


class Checked(BaseModel):
    """A frozen record whose wrong values are an ``InvalidArgument`` that names the field."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise _refusal(error) from error


def _refusal(error: ValidationError) -> InvalidArgument:
    faults = error.errors()
    first, (field, words) = faults[0], first_fault(faults)
    inner = first.get("ctx", {}).get("error")
    if isinstance(inner, InvalidArgument):  # of a record within this one
        return InvalidArgument(f"{field}.{inner.message}", field=f"{field}.{inner.field}")
    given = "" if isinstance(first["input"], dict) else f", not {first['input']!r}"
    return InvalidArgument(f"{field}: {words}{given}", field=field)


class Node(Checked):
    """One size of node. Prices are a node and hour; ``spot`` is None where no source gives one."""

    vcpus: Positive
    memory_gib: Positive
    on_demand: Positive
    spot: Positive | None = None
    reserved_cpu: Amount = 0
    """vCPUs that the kubelet and the system keep."""
    reserved_memory_gib: Amount = 0
    max_pods: Annotated[int, Field(ge=1)] = 110
    system_pods: Annotated[int, Field(ge=0)] = 0
    """Pods of DaemonSets on each node; they count against ``max_pods``."""
    fixed: Amount = 0
    """What the cluster costs an hour whatever its size: the control plane."""
    source: str


class Peer(Checked):
    """A service that bills a sandbox for what it was given, while it runs."""

    vcpu_hour: Amount
    gib_hour: Amount
    source: str


class Catalogue(Checked):
    """Nodes and peers by name; ``date`` is the day on which it was made."""

    date: date
    nodes: dict[str, Node] = {}
    peers: dict[str, Peer] = {}

    def node(self, name: str) -> Node:
        """Return the node called ``name``.

        Raises:
            InvalidArgument: there is none.
        """
        if name not in self.nodes:
            known = ", ".join(self.nodes)
            raise InvalidArgument(f"no price of a node {name!r} is known; known: {known}; or give a file", field="node")
        return self.nodes[name]


def catalogue(file: Path | None = None) -> Catalogue:
    """Return the built-in prices; those of ``file`` come before them, entry by entry, and its date is taken.

    Raises:
        InvalidArgument: ``file`` cannot be read, or is no catalogue; the message names the key.
    """
    built_in = _read(BUILT_IN)
    if file is None:
        return built_in
    own = _read(file)
    return Catalogue(date=own.date, nodes=built_in.nodes | own.nodes, peers=built_in.peers | own.peers)


def _read(file: Path) -> Catalogue:
    try:
        return Catalogue(**tomllib.loads(file.read_text(encoding="utf-8")))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InvalidArgument(f"prices {str(file)!r} cannot be read: {error}", field="prices") from error
    except InvalidArgument as error:
        raise InvalidArgument(f"prices {str(file)!r}: {error.message}", field=error.field) from error
