"""Building tool layers, once for each content."""

from __future__ import annotations

from orchard.core.errors import Unsupported
from orchard.harness.layers.layer import Layer


async def build(layer: Layer) -> str:
    """Return ``NAME@sha256:…`` of ``layer``, built on first use; any number of processes may ask at once.

    Raises:
        MachineUnfit: an index cannot be reached, or a program is missing; with its last words.
    """
    raise Unsupported(f"the layer {layer.name} cannot be built yet", hint="leave this harness out")
