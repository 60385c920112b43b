"""Rendering: a model's chat template and the syntax of its answers, one file a family.

``load_renderer`` and ``make_renderer`` need the extra ``tokens``; the seam (``Renderer``, ``Reader``) does not.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from orchard.core.errors import MachineUnfit
from orchard.gateway.rendering.base import Reader, Renderer

if TYPE_CHECKING:
    from orchard.gateway.rendering.load import FAMILIES, load_renderer, make_renderer

__all__ = ["FAMILIES", "Reader", "Renderer", "load_renderer", "make_renderer"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(name)
    try:
        from orchard.gateway.rendering import load
    except ImportError as error:
        raise MachineUnfit(
            f"rendering needs a package that is not installed: {error.name}", hint="pip install 'orchard-env[tokens]'"
        ) from error
    return getattr(load, name)
