"""Sandboxes as images: changes become a layer in the registry, from which further sandboxes start."""

import asyncio
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.cluster.images import layouts
from tests.kubernetes.cluster.processes import run
from tests.kubernetes.daemon import settings_for
from tests.kubernetes.replicas import replicas
from tests.support.waiting import until

from orchard.core.errors import CreateFailed, FileError, OrchardError, SandboxGone, Unsupported
from orchard.sandbox import Orchard
from orchard.sandbox.kubernetes import KubernetesBackend
from orchard.sandbox.types import State


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))


def backend_of(cluster: Cluster, namespace: str, **given: Any) -> KubernetesBackend:
    repository = f"{cluster.registry}/{namespace}/commits"
    return KubernetesBackend(settings_for(cluster, namespace, commit_repository=repository, **given))


async def test_a_commit_makes_the_changes_a_layer(cluster: Cluster, namespace: str) -> None:
    backend = backend_of(cluster, namespace)
    async with Orchard(backend=backend) as orchard:
        box = await orchard.create(cluster.image("debian"), env={"X": "1"}, ttl=300)
        script = r"""
rm -rf /etc/apt /usr/bin/git; mkdir /etc/apt; echo new > /etc/apt/new
mkdir -p /work/inner; chown 5:6 /work/inner; chmod 2751 /work/inner; ln -s inner /work/link; mkfifo /work/pipe
mv /usr/share/perl5 /usr/share/moved; python3 -c "import os; os.setxattr('/work', 'user.note', b'kept')"
ln /usr/bin/python3.11 /work/hard; ln /usr/bin/python3.11 /work/hard2; touch "/work/$(printf '\377')"
rm -rf /var/log; echo file > /var/log; chmod 600 /etc/hostname; truncate -s 8M /work/sparse; echo x >> /work/sparse
dd if=/dev/urandom of=/big bs=1M count=4 status=none; sha256sum < /big
"""
        made = (await box.run(script)).check()
        await box.start("while true; do echo x >> /work/busy; done")  # ended first, so it cannot tear the layer
        digest = await box.commit("mine:1")
        gone = await orchard.get(box.id)
        assert (gone.state, gone.reason, gone.detail) == (State.GONE, "deleted", "committed as mine:1")
        later = backend_of(cluster, namespace)  # as another replica, after a lost answer
        assert await later.commit(box.id, "mine:1") == digest
        with pytest.raises(SandboxGone):
            await later.commit(box.id, "another")
        await later.close()
        assert await backend.resolve_image(digest) == digest
        child = await orchard.create(digest, ttl=300)
        assert child.info.image_digest == digest
        check = """
ls /etc/apt; ls /usr/bin/git /usr/share/perl5 2>/dev/null; ls -d /usr/share/moved; ls -b /work; cat /var/log
stat -c '%a %u:%g' /work/inner; readlink /work/link; [ /work/hard -ef /work/hard2 ] && stat -c %s.%h /work/hard
python3 -c "import os; print(os.getxattr('/work', 'user.note').decode())"; stat -c %s /work/sparse
tail -c2 /work/sparse | tr -d "\\0"; echo $LANG
ls -A /.orchard; stat -c %a /tmp; sha256sum < /big
"""
        size = (await child.run("stat -L -c %s /usr/bin/python3.11")).text.strip()
        names = "busy\nhard\nhard2\ninner\nlink\nsparse\n\\377\n"
        expected = (
            f"new\n/usr/share/moved\n{names}file\n2751 5:6\ninner\n{size}.2\nkept\n8388610\nx\nC.UTF-8\n"
            f"bin\ndeath\nstate\n1777\n{made.text}"
        )
        assert (await child.run(check)).text == expected
        again = await child.commit("mine:2")  # over a committed one, whose base is in the repository already
        async with orchard.sandbox(again) as grandchild:
            assert (await grandchild.run("cat /etc/apt/new")).text == "new\n"
        assert (await orchard.list()) == []
    await backend.close()


async def test_the_same_commit_twice_at_once_is_one(cluster: Cluster, namespace: str) -> None:
    first, second = backend_of(cluster, namespace), backend_of(cluster, namespace)
    async with Orchard(backend=first) as orchard:
        box = await orchard.create(cluster.image("busybox"), ttl=300)
        (await box.run("echo a > /a")).check()
        answers = await asyncio.gather(
            first.commit(box.id, "x"), first.commit(box.id, "x"), second.commit(box.id, "x"), return_exceptions=True
        )
        digests = {each for each in answers if isinstance(each, str)}
        assert len(digests) == 1
        assert await second.commit(box.id, "x") in digests
    await first.close()
    await second.close()


async def test_a_commit_that_fails_leaves_the_sandbox_and_can_be_repeated(cluster: Cluster, namespace: str) -> None:
    nowhere = backend_of(cluster, namespace)
    wrong = KubernetesBackend(settings_for(cluster, namespace, commit_repository="registry.invalid/x"))
    async with Orchard(backend=nowhere) as orchard:
        box = await orchard.create(cluster.image("nonroot"), ttl=300)
        (await box.run("mkdir d; echo kept > d/f; ln -s f d/.wh.l")).check()
        with pytest.raises(Unsupported, match=r"\.wh\.l"):
            await box.commit("x")
        assert (await box.run("rm d/.wh.l; id -u; pwd")).text == "1000\n/home/user\n"
        digest = await box.commit("x")
        async with orchard.sandbox(digest) as child:
            assert (await child.run("cat d/f; id -u")).text == "kept\n1000\n"
        with pytest.raises(CreateFailed) as caught:
            await orchard.create("sha256:" + "0" * 64)
        assert caught.value.reason == "image_not_found"
        plain = KubernetesBackend(settings_for(cluster, namespace))
        with pytest.raises(CreateFailed) as caught:
            await plain.resolve_image(digest)
        assert caught.value.reason == "image_not_found"
        with pytest.raises(Unsupported, match="repository"):
            await plain.commit(box.id, "y")
        for each in (plain, wrong):
            await each.close()
    await nowhere.close()


async def test_what_a_sandbox_without_root_cannot_read_is_named(cluster: Cluster, namespace: str) -> None:
    backend = backend_of(cluster, namespace, run_as=1000)
    async with Orchard(backend=backend) as orchard, orchard.sandbox(cluster.image("debian")) as box:
        (await box.run("echo secret > /tmp/closed; chmod 0 /tmp/closed")).check()
        with pytest.raises(FileError) as caught:
            await box.commit("x")
        assert (caught.value.path, caught.value.errno_name) == ("/tmp/closed", "EACCES")
        (await box.run("chmod 600 /tmp/closed")).check()
        digest = await box.commit("x")  # files of root's that it cannot read either are as the image has them
        async with orchard.sandbox(digest) as child:
            assert (await child.run("cat /tmp/closed")).text == "secret\n"
    await backend.close()


def push_index(cluster: Cluster, folder: Path, reference: str) -> None:
    """Push an image for two architectures, that of the nodes last."""
    made = layouts(cluster.programs)
    blobs = folder / "blobs" / "sha256"
    images: list[dict[str, Any]] = []
    for name in ("foreign", "busybox"):
        shutil.copytree(made[name] / "blobs" / "sha256", blobs, dirs_exist_ok=True)
        (described,) = json.loads((made[name] / "index.json").read_text())["manifests"]
        manifest = json.loads((blobs / described["digest"].partition(":")[2]).read_text())
        config = json.loads((blobs / manifest["config"]["digest"].partition(":")[2]).read_text())
        platform = {"os": config["os"], "architecture": config["architecture"]}
        images.append({key: described[key] for key in ("mediaType", "digest", "size")} | {"platform": platform})
    kind = "application/vnd.oci.image.index.v1+json"
    index = json.dumps({"schemaVersion": 2, "mediaType": kind, "manifests": images}).encode()
    digest = hashlib.sha256(index).hexdigest()
    (blobs / digest).write_bytes(index)
    entry = {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(index)}
    entry["annotations"] = {"org.opencontainers.image.ref.name": "latest"}
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    plain = f"--dest-tls-verify={str(not cluster.plain).lower()}"
    run(
        "skopeo",
        "--insecure-policy",
        "copy",
        "--quiet",
        "--all",
        plain,
        f"oci:{folder}:latest",
        f"docker://{reference}",
    )


async def test_of_an_image_for_several_architectures_that_of_the_node_is_built_upon(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    image = f"{cluster.registry}/{namespace}/several:1"
    push_index(cluster, tmp_path / "several", image)
    backend = backend_of(cluster, namespace)
    async with Orchard(backend=backend) as orchard:
        box = await orchard.create(image, ttl=300)
        (await box.run("echo here > /here")).check()
        async with orchard.sandbox(await box.commit("x")) as child:
            assert (await child.run("cat /here; ls /bin/sh")).text == "here\n/bin/sh\n"
    await backend.close()


async def test_another_replica_goes_on_where_one_was_killed(cluster: Cluster, tmp_path: Path) -> None:
    with replicas(cluster, tmp_path, 2, commit_repository=f"{cluster.registry}/{tmp_path.name}/commits") as running:
        async with running.door(0) as first, running.door(1) as second:
            box = await first.create(cluster.image("debian"), ttl=600)
            (await box.run("head -c 30M /dev/urandom > /big; sha256sum /big > /sum")).check()
            other = await second.attach(box.id)
            direct = backend_of(cluster, running.namespace)
            way = await direct.endpoint(box.id)
            await direct.close()
            under_way = asyncio.ensure_future(box.commit("x"))

            async def taken_over() -> bool:
                asked = aiohttp.request("GET", f"{way.base}{way.prefix}/lease", headers=dict(way.headers))
                async with asked as answer:
                    return answer.status == 401

            await until(taken_over, seconds=120, most=0.1)
            running.kill(running.services[0].port)
            under_way.cancel()
            with pytest.raises((asyncio.CancelledError, OrchardError)):
                await under_way
            assert (await second.get(box.id)).state is State.READY
            digest = await other.commit("x")
            async with second.sandbox(digest) as child:
                assert (await child.run("sha256sum -c /sum")).text == "/big: OK\n"
            await until(lambda: running.pods() == [])
            assert list((tmp_path / "cache" / "kubernetes" / "commits").iterdir()) == []


async def test_a_commit_beyond_its_size_is_refused_and_the_sandbox_lives_on(cluster: Cluster, namespace: str) -> None:
    backend = backend_of(cluster, namespace, commit_bytes=1 << 20)
    async with Orchard(backend=backend) as orchard:
        box = await orchard.create(cluster.image("busybox"), ttl=120)
        (await box.run("yes | head -c 2097152 > /large")).check()
        with pytest.raises(Unsupported) as caught:
            await box.commit("large")
        assert caught.value.reason == "too_large"
        (await box.run("echo small > /large")).check()
        assert (await box.commit("small")).startswith("sha256:")
    await backend.close()
