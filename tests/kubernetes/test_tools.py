"""Tool layers in Pods: the image that was pushed is what the digest names, mounted read-only behind the image's own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.kubernetes.cluster.cluster import Cluster

from orchard.core.errors import CreateFailed, Unsupported
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.toolpush import push
from orchard.sandbox.tools import add

Replicas = Callable[..., KubernetesBackend]
AT = "/opt/orchard/tools"


@pytest.fixture
async def greeter(cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A tool layer in the cluster's registry: a static busybox, and a script by it."""
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    programs = tmp_path / "greeter" / "bin"
    programs.mkdir(parents=True)
    shutil.copy(shutil.which("busybox") or "/bin/busybox", programs / "busybox")
    for name in ("greet", "id"):
        (programs / name).write_text(f"#!{AT}/greeter/bin/busybox sh\necho {name} of the tool\n")
        (programs / name).chmod(0o700)
    tool = add("greeter", tmp_path / "greeter")
    assert await push(tool, f"{cluster.registry}/tools", plain=cluster.plain) == f"{cluster.registry}/tools/{tool}"
    return tool


async def test_a_tool_is_in_a_pod_as_it_is_here(
    cluster: Cluster, namespace: str, replica: Replicas, greeter: str
) -> None:
    registry = cluster.registry
    backend = replica(tools_repository=f"{registry}/tools", commit_repository=f"{registry}/commits/{namespace}")
    async with Orchard(backend=backend) as orchard:
        async with orchard.sandbox(cluster.image("busybox"), tools=[greeter], ttl=300) as box:
            seen = await box.run(f"greet; id; echo $PATH; ls -ln {AT}/greeter/bin/greet; echo >{AT}/greeter/bin/new")
            said, who, path, mode = seen.text.splitlines()
            assert said == "greet of the tool"
            assert who.startswith("uid=")
            assert path.endswith(f":/bin:{AT}/greeter/bin")
            assert mode.split()[0] == "-rwxr-xr-x"
            assert "Read-only file system" in seen.error_text
            (await box.run("mkdir -p /opt/mine && greet >/opt/mine/said")).check()
            digest = await box.commit("with-a-tool")
        async with orchard.sandbox(digest, ttl=300) as box:
            found = await box.run("cat /opt/mine/said; ls /opt")
            assert found.text.split("\n") == ["greet of the tool", "mine", ""]
        with pytest.raises(CreateFailed) as refused:
            await orchard.create(cluster.image("busybox"), tools=[f"greeter@sha256:{'0' * 64}"], ttl=300)
        assert (refused.value.reason, "--push" in (refused.value.hint or "")) == ("tool_not_found", True)


async def test_without_a_repository_tools_are_refused_by_name(cluster: Cluster, replica: Replicas) -> None:
    backend = replica()
    assert "tools" in (await backend.capabilities()).exceptions
    async with Orchard(backend=backend) as orchard:
        with pytest.raises(Unsupported, match="tools_repository"):
            await orchard.create(cluster.image("busybox"), tools=[f"greeter@sha256:{'0' * 64}"], ttl=300)
