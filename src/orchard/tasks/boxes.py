"""What preparing and grading do to a sandbox beyond its public methods."""

from __future__ import annotations

from orchard.sandbox import Sandbox
from orchard.sandbox.transport import Call, query
from orchard.tasks.tree import Tree, as_tar


async def put_tree(box: Sandbox, tree: Tree, folder: str) -> None:
    """Write a tree below ``folder``, made if missing; what stands there and is not in the tree stays."""
    await box.transport.request(Call("PUT", "/tree", query(path=folder), body=as_tar(tree)))
