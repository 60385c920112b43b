"""Going direct where there is no direct way."""

import pytest
from tests.support.service import Served

from orchard.core.errors import InvalidArgument
from orchard.sandbox import Orchard


async def test_where_only_the_service_reaches_a_sandbox_all_goes_through_it(service: Served, busybox: str) -> None:
    async with Orchard(service.url, api_key=service.key, direct=True) as orchard, orchard.sandbox(busybox) as box:
        assert (await box.run(["echo", "through"])).text == "through\n"
        assert box.transport.endpoint.base == service.url


def test_direct_is_for_a_service() -> None:
    with pytest.raises(InvalidArgument):
        Orchard(backend="local", direct=True)
