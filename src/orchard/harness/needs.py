"""What a harness needs of the image, looked for before it runs."""

from __future__ import annotations

from orchard.core.errors import CommandNotStarted, ImageUnfit
from orchard.harness.protocol import Harness
from orchard.sandbox import Sandbox

_LOOK = 'for name; do command -v "$name" >/dev/null 2>&1 || echo "$name"; done'
_SECONDS = 60.0


async def check_needs(harness: Harness, box: Sandbox) -> None:
    """Return if the sandbox has the programs that ``harness`` names in ``needs``.

    Raises:
        ImageUnfit: it lacks some; the message names them, the harness and the image.
    """
    if not harness.needs:
        return
    try:
        found = await box.run(["sh", "-c", _LOOK, "sh", *harness.needs], timeout=_SECONDS)
        missing = found.check().text.split()
    except CommandNotStarted as error:
        if error.reason not in ("program_not_found", "not_executable"):
            raise
        missing = ["sh"]
    if missing:
        raise ImageUnfit(
            f"image {box.info.image!r} has no {', '.join(missing)} on its PATH, and {harness.name} needs it",
            hint="install it in the image, or choose a harness that runs beside the sandbox",
        )
