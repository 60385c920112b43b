from pathlib import Path

from tests.support.daemon import DaemonBackend

from orchard.sandbox import Orchard
from orchard.sandbox.protocol import Capabilities
from orchard.tasks.boxes import bounds
from orchard.tasks.model import TaskLimits


class Unlimited(DaemonBackend):
    """Cannot bound memory, as an ordinary user's machine without a delegated control group."""

    async def capabilities(self) -> Capabilities:
        return Capabilities({"memory": "no control group"})


async def test_memory_is_bounded_unless_the_backend_cannot_and_nobody_asked(tmp_path: Path) -> None:
    plain, own = TaskLimits(), TaskLimits(cpu=2, memory="5GiB")
    bounded, unlimited = Orchard(backend=DaemonBackend(tmp_path)), Orchard(backend=Unlimited(tmp_path))
    assert await bounds(bounded, plain) == {"memory": "2GiB", "pids": 4096}
    assert await bounds(unlimited, plain) == {"pids": 4096}
    for orchard in (bounded, unlimited):  # what is asked for is refused by the backend, not left out here
        assert await bounds(orchard, own) == {"cpu": 2, "memory": "5GiB", "pids": 4096}
