"""What preparing and grading do to a sandbox beyond its public methods."""

from __future__ import annotations

from typing import Any

from orchard.sandbox import Orchard, Sandbox
from orchard.sandbox.transport import Call, query
from orchard.tasks.model import DEFAULT_MEMORY, TaskLimits
from orchard.tasks.tree import Tree, as_tar


async def bounds(orchard: Orchard, limits: TaskLimits) -> dict[str, Any]:
    """Return a task's limits as options of its sandboxes; a default is left out where the backend cannot hold it."""
    found = {name: value for name in ("cpu", "memory", "pids") if (value := getattr(limits, name)) is not None}
    if limits.memory is None and "memory" not in (await orchard.capabilities()).exceptions:
        found["memory"] = DEFAULT_MEMORY
    return found


async def put_tree(box: Sandbox, tree: Tree, folder: str) -> None:
    """Write a tree below ``folder``, made if missing; what stands there and is not in the tree stays."""
    await box.transport.request(Call("PUT", "/tree", query(path=folder), body=as_tar(tree), silence=None))
