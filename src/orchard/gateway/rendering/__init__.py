"""Rendering: a model's chat template and the syntax of its answers, one file a family."""

from orchard.gateway.rendering.base import Reader, Renderer

__all__ = ["Reader", "Renderer"]
