"""Roots and users of every kind: no shell, not root, a uid that nobody knows, a root that is read-only."""

from collections.abc import Callable

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.daemon import settings_for, special_images

from orchard.core.errors import CommandNotStarted
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend

Replicas = Callable[..., KubernetesBackend]


@pytest.fixture(scope="session")
def special(cluster: Cluster) -> dict[str, str]:
    return dict(special_images(cluster.registry, cluster.plain))


@pytest.mark.parametrize("kind", ["debian", "busybox", "static"])
async def test_a_root_with_much_with_little_and_with_one_program(
    cluster: Cluster, replica: Replicas, special: dict[str, str], kind: str
) -> None:
    image = cluster.image("debian") if kind == "debian" else special[kind]
    argv = ["/busybox", "id", "-u"] if kind == "static" else ["id", "-u"]
    async with Orchard(backend=replica()).sandbox(image) as box:
        assert (await box.run(argv)).stdout == b"0\n"
        await box.files.write("/new/file", b"\x00\xff")
        assert await box.files.read("/new/file") == b"\x00\xff"
        if kind == "static":
            with pytest.raises(CommandNotStarted) as caught:
                await box.run("true")
            assert caught.value.reason == "no_shell"


async def test_commands_run_as_the_images_user_in_its_folder_and_with_its_environment(
    replica: Replicas, special: dict[str, str]
) -> None:
    async with Orchard(backend=replica()) as orchard, orchard.sandbox(special["user"]) as box:
        seen = await box.run('id -un; pwd; echo "$IMAGE_SAYS $HOME"')
        assert seen.text == "app\n/home/app\nhello /home/app\n"
        assert (await box.run("id -u", user="0")).stdout == b"0\n"
        info = await orchard.get(box.id)
        assert (info.user, info.workdir, info.env["IMAGE_SAYS"]) == ("app", "/home/app", "hello")
    async with orchard.sandbox(special["user"], entrypoint=True) as box:
        assert (await (await box.attach("entrypoint")).wait()).exit_code == 5


async def test_a_workdir_that_is_missing_is_an_error_of_the_command_and_not_made(
    replica: Replicas, special: dict[str, str]
) -> None:
    async with Orchard(backend=replica()).sandbox(special["busybox"], workdir="/no/such") as box:
        with pytest.raises(CommandNotStarted) as caught:
            await box.run("pwd")
        assert caught.value.reason == "cwd_missing"
        assert (await box.run("mkdir -p /no/such", cwd="/")).ok
        assert (await box.run("pwd")).text == "/no/such\n"


async def test_the_profile_restricted_runs_as_a_number_without_any_power(
    cluster: Cluster, special: dict[str, str]
) -> None:
    with cluster.namespace("restricted") as namespace:
        backend = KubernetesBackend(settings_for(cluster, namespace, profile="restricted", run_as=65532))
        try:
            async with Orchard(backend=backend).sandbox(special["busybox"]) as box:
                seen = await box.run("id -u; grep -E 'CapBnd|NoNewPrivs|Seccomp:' /proc/self/status")
                assert seen.text.split() == [
                    "65532", "CapBnd:", "0000000000000000", "NoNewPrivs:", "1", "Seccomp:", "2",
                ]  # fmt: skip
                assert (await box.run("echo x > /tmp/mine && cat /tmp/mine")).text == "x\n"
        finally:
            await backend.close()


async def test_a_root_that_is_read_only_takes_commands_and_keeps_their_output(
    replica: Replicas, special: dict[str, str]
) -> None:
    async with Orchard(backend=replica(read_only_root=True, run_as=123456)).sandbox(special["static"]) as box:
        big = await box.run(["/busybox", "seq", "1", "200000"])
        assert big.stdout_bytes == 1288895
        assert big.truncated
        assert (await box.run(["/busybox", "touch", "/x"])).exit_code != 0
        assert (await box.run(["/busybox", "id", "-u"])).stdout == b"123456\n"


async def test_only_some_powers_are_kept_and_no_secret_of_the_cluster_is_inside(
    cluster: Cluster, replica: Replicas
) -> None:
    async with Orchard(backend=replica()).sandbox(cluster.image("debian")) as box:
        seen = await box.run("grep CapBnd /proc/self/status | cut -f2; grep Seccomp: /proc/self/status | cut -f2")
        assert seen.text == "00000000000000fb\n2\n"  # CHOWN DAC_OVERRIDE FOWNER FSETID KILL SETGID SETUID
        assert (await box.run("chown 1234 /tmp && su -s /bin/sh nobody -c 'id -un'")).text == "nobody\n"
        assert (await box.run("cat /proc/1/environ")).exit_code != 0
        assert (await box.run("ls /var/run/secrets/kubernetes.io")).exit_code != 0
