"""How many sandboxes are committed at once."""

import asyncio
from pathlib import Path
from typing import Any, cast

import pytest
from tests.support.waiting import until

from orchard.core.errors import SandboxGone
from orchard.sandbox.kubernetes import KubernetesSettings
from orchard.sandbox.kubernetes.commit import Committer
from orchard.sandbox.kubernetes.identity import Identity, ServiceKey
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.registry import Registry

NOBODY: Any = None  # no cluster is come to


async def test_commits_are_bounded_in_number(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path))
    held: list[asyncio.StreamWriter] = []
    server = await asyncio.start_server(lambda _, writer: held.append(writer), "127.0.0.1", 0)
    silent = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
    settings = KubernetesSettings(commit_repository=f"{silent}/made", insecure_registries=[silent], commits=3)
    looked = list[str]()

    async def find(sandbox_id: str) -> tuple[dict[str, Any], Identity]:
        looked.append(sandbox_id)
        return {}, Identity("boxes", "name", sandbox_id, "tenant")

    key, registry = ServiceKey(b"k" * 32), Registry(settings, Images(settings, NOBODY))
    committer = Committer(settings, NOBODY, key, NOBODY, registry, NOBODY, cast("Any", find))
    asks = [asyncio.ensure_future(committer.commit(f"sb-{number}", "name")) for number in range(7)]
    await until(lambda: len(looked) == 7 and len(held) >= 3)
    await asyncio.sleep(0.5)  # in which a fourth would ask the registry, too
    assert len(held) == 3
    await committer.close()
    await asyncio.gather(*asks, return_exceptions=True)
    for writer in held:
        writer.close()
    server.close()


@pytest.mark.parametrize("made", [None, "sha256:made"])
async def test_who_is_asked_again_while_another_replica_commits_finds_what_that_one_made(
    made: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    ended = list[str]()

    class Repository:
        async def digest(self, reference: str) -> str | None:
            return made if ended else None

    class Rest:
        async def bury(self, *_: object) -> None:
            return

        async def delete(self, sandbox_id: str) -> None:
            ended.append(sandbox_id)

    async def find(sandbox_id: str) -> tuple[dict[str, Any], Identity]:
        return {"metadata": {}}, Identity("boxes", "name", sandbox_id, "tenant")

    async def gone(*_: object) -> str:
        ended.append("by another")
        raise SandboxGone("it has ended", reason="deleted")

    monkeypatch.setattr(Committer, "_image", gone)
    settings = KubernetesSettings(commit_repository="127.0.0.1:1/made")
    rest = cast("Any", Rest())
    committer = Committer(
        settings, NOBODY, ServiceKey(b"k" * 32), rest, cast("Any", Repository()), rest, cast("Any", find)
    )
    if made is None:
        with pytest.raises(SandboxGone):
            await committer.commit("sb-1", "name")
    else:
        assert await committer.commit("sb-1", "name") == made
