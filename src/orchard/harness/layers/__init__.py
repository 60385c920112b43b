"""Tool layers of harnesses: programs with all that they stand on, built once, mounted read-only into any image.

A driver says what its layer holds and asks for it::

    CODEX = Layer("codex", npm=("@openai/codex@0.145.0",))

    async def tools(self) -> Sequence[str]:
        return [await build(NODE), await build(CODEX)]
"""

from orchard.harness.layers.build import build, built, python_here
from orchard.harness.layers.layer import NODE, NODE_PROGRAM, PYTHON, PYTHON_PROGRAM, Layer

__all__ = ["NODE", "NODE_PROGRAM", "PYTHON", "PYTHON_PROGRAM", "Layer", "build", "built", "python_here"]
