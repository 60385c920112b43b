"""torch and transformers, imported when used. Both are untyped here: a base install has neither."""

from __future__ import annotations

import importlib
from typing import Any

from orchard.core.errors import MachineUnfit

Tensor = Any
"""A ``torch.Tensor``."""


def torch() -> Any:
    """Return torch.

    Raises:
        MachineUnfit: it is not installed.
    """
    return _library("torch")


def transformers() -> Any:
    """Return transformers.

    Raises:
        MachineUnfit: it is not installed.
    """
    return _library("transformers")


def _library(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as error:
        hint = "pip install 'orchard-env[transformers]'"
        raise MachineUnfit(f"the embedded engine needs {name}, which cannot be imported: {error}", hint=hint) from error
