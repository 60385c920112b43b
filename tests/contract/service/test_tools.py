"""Tool layers through a service: the name travels, and the store of the service's machine is looked in."""

import shutil
from pathlib import Path

import aiohttp
import pytest
from tests.support.service import served

from orchard.core.errors import CreateFailed
from orchard.sandbox import Orchard
from orchard.sandbox.tools import add


async def test_the_service_has_the_tools(
    image_home: Path, busybox: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "tool" / "bin" / "greet"
    program.parent.mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", program.with_name("busybox"))
    program.write_text("#!/opt/orchard/tools/greeter/bin/busybox sh\necho hello, $1\n")
    program.chmod(0o755)
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "theirs"))
    tool = add("greeter", tmp_path / "tool")
    with served(image_home, "--allow-host-images") as running:
        monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "ours"))
        async with Orchard(running.url, api_key=running.key) as orchard:
            async with orchard.sandbox(busybox, tools=[tool], ttl=60) as box:
                assert (await box.run(["greet", "you"])).check().text == "hello, you\n"
            with pytest.raises(CreateFailed) as missing:
                await orchard.create(busybox, tools=[f"greeter@sha256:{'0' * 64}"], ttl=60)
            assert missing.value.reason == "tool_not_found"
            assert "orchard harness install" in (missing.value.hint or "")
        async with aiohttp.ClientSession(running.url, headers=running.auth) as http:
            body, key = {"image": busybox, "tools": [tool, tool]}, {"Idempotency-Key": "twice"}
            async with http.post("/v1/sandboxes", json=body, headers=key) as answer:
                assert (answer.status, (await answer.json())["field"]) == (400, "tools")
