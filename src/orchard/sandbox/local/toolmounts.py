"""Where tool layers lie in a sandbox: mount points in a layer of their own above the image's, so that none is made."""

from __future__ import annotations

import os
import stat
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from orchard.core.errors import CreateFailed
from orchard.sandbox.local.images import Image
from orchard.sandbox.toolnames import parse_tools
from orchard.sandbox.tools import INSTALL_HINT, find


def find_tools(texts: Sequence[str]) -> dict[str, Path]:
    """Return the mount point of each tool layer and its folder on this machine.

    Raises:
        CreateFailed: tool_not_found: the store of this machine has it not.
    """
    found: dict[str, Path] = {}
    for tool in parse_tools(texts):
        place = find(tool)
        if place is None:
            text = f"tool {tool} is not in the tool store of this machine"
            raise CreateFailed(text, reason="tool_not_found", hint=INSTALL_HINT)
        found[tool.mount] = place
    return found


def write_mount_points(layer: Path, points: Sequence[str], image: Image) -> None:
    """Make ``layer`` hold the folders ``points``; those that the image has too look as they do there.

    Raises:
        CreateFailed: image_invalid: the image has something else in their way.
    """
    for point in points:
        name = PurePosixPath(point).relative_to("/")
        for at in [*reversed(name.parents), name][1:]:
            facts = _in_image(image, at)
            (layer / at).mkdir(parents=True, exist_ok=True)
            (layer / at).chmod(stat.S_IMODE(facts.st_mode) if facts else 0o755)
            if facts and os.geteuid() == 0:
                os.chown(layer / at, facts.st_uid, facts.st_gid)


def _in_image(image: Image, name: PurePosixPath) -> os.stat_result | None:
    for layer in image.layers:
        try:
            facts = (layer / name).lstat()
        except FileNotFoundError:
            continue
        except NotADirectoryError:  # the folder above it is a whiteout here
            return None
        if stat.S_ISCHR(facts.st_mode):
            return None
        if not stat.S_ISDIR(facts.st_mode):
            raise CreateFailed(f"/{name} of the image is no folder, so tools have no place", reason="image_invalid")
        return facts
    return None
