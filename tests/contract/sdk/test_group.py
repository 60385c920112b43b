"""Groups of sandboxes: all or none."""

import pytest
from tests.support.daemon import DaemonBackend

from orchard.core.errors import CreateFailed, InvalidArgument
from orchard.sandbox import Orchard, SandboxInfo, SandboxSpec
from orchard.sandbox.conformance.wrap import Wrapped
from orchard.sandbox.types import GROUP_LABEL


class Failing(Wrapped):
    """The third create of all fails, for ``reason``."""

    reason, asked = "", 0

    async def create(self, spec: SandboxSpec, key: str) -> SandboxInfo:
        self.asked += 1
        if self.asked == 3:
            raise CreateFailed("as the test wants", reason=self.reason)
        return await super().create(spec, key)


async def test_a_block_owns_all_of_them_and_leaves_none(daemon: DaemonBackend, orchard: Orchard) -> None:
    async with orchard.sandboxes("host", 3, labels={"a": "b"}) as boxes:
        assert len({box.id for box in boxes}) == 3
        assert [(await box.run("echo here")).text for box in boxes] == ["here\n"] * 3
        (group,) = {box.info.labels[GROUP_LABEL] for box in boxes}
        assert len(await orchard.list({"a": "b", GROUP_LABEL: group})) == 3
    assert await orchard.list() == []


async def test_one_that_fails_leaves_none(daemon: DaemonBackend) -> None:
    failing = Failing(daemon)
    failing.reason = "start_failed"
    async with Orchard(backend=failing) as orchard:
        with pytest.raises(CreateFailed, match="as the test wants"):
            async with orchard.sandboxes("host", 5):
                raise AssertionError("one of them failed")
        assert await orchard.list() == []


async def test_a_group_that_made_way_comes_again_under_other_keys(daemon: DaemonBackend) -> None:
    failing = Failing(daemon)
    failing.reason = "made_way"
    async with Orchard(backend=failing) as orchard, orchard.sandboxes("host", 3, create_timeout=60) as boxes:
        assert failing.asked == 6
        assert {info.id for info in await orchard.list()} == {box.id for box in boxes}


@pytest.mark.parametrize("count", [0, -1, 1001, True])
async def test_how_many_is_checked(orchard: Orchard, count: int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        orchard.sandboxes("host", count)
    assert caught.value.field == "count"
