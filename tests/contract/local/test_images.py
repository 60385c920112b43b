"""Images of every kind, the host's root among them, and what a sandbox's changes make of one."""

import asyncio
import hashlib
import io
import json
import os
import shutil
import subprocess
import tarfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from orchard.core.errors import CreateFailed, InvalidArgument, SandboxGone, Unsupported
from orchard.sandbox import Orchard
from orchard.sandbox.local import LocalBackend, LocalSettings
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.rootfs import import_tar
from orchard.sandbox.local.storage import Storage

pytestmark = pytest.mark.slow

OCI = "application/vnd.oci.image"


@pytest.fixture(scope="session")
def busybox_layer(busybox_root: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        tar.add(busybox_root.removeprefix("dir:"), ".")
    return buffer.getvalue()


def layer(**files: str) -> bytes:
    """Return a layer with these files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(text)
            tar.addfile(info, io.BytesIO(text.encode()))
    return buffer.getvalue()


def oci_layout(folder: Path, layers: list[bytes], architecture: str | None = None, **config: Any) -> str:
    """Write an OCI layout with one image; return its reference."""
    blobs = folder / "blobs" / "sha256"
    blobs.mkdir(parents=True)

    def blob(content: bytes, kind: str) -> dict[str, Any]:
        digest = hashlib.sha256(content).hexdigest()
        (blobs / digest).write_bytes(content)
        return {"mediaType": f"{OCI}.{kind}", "digest": f"sha256:{digest}", "size": len(content)}

    entries = [blob(content, "layer.v1.tar") for content in layers]
    whole = {
        "architecture": architecture or {"x86_64": "amd64", "aarch64": "arm64"}[_machine()], "os": "linux",
        "config": config, "rootfs": {"type": "layers", "diff_ids": [entry["digest"] for entry in entries]},
    }  # fmt: skip
    settings = blob(json.dumps(whole).encode(), "config.v1+json")
    manifest = {"schemaVersion": 2, "mediaType": f"{OCI}.manifest.v1+json", "config": settings, "layers": entries}
    entry = blob(json.dumps(manifest).encode(), "manifest.v1+json")
    (folder / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
    (folder / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}')
    return f"oci:{folder}"


def command(*argv: str | Path, **environment: str) -> None:
    subprocess.run(argv, env={**os.environ, **environment}, check=True)


def exists(path: str) -> bool:
    return os.path.lexists(path)


def _machine() -> str:
    return subprocess.run(["uname", "-m"], capture_output=True, text=True, check=True).stdout.strip()


async def test_a_debian_with_its_owners_modes_and_environment(orchard: Orchard, debian_image: str):
    box = await orchard.create(debian_image)
    assert box.info.image_digest == debian_image
    said = await box.run("stat -c '%a %U:%G' /etc/shadow /tmp; echo $LANG; python3 -c 'print(6*7)'; git --version")
    lines = said.check().text.splitlines()
    assert lines[:4] == ["640 root:shadow", "1777 root:root", "C.UTF-8", "42"]
    assert (await box.run("apt-get --version && su -s /bin/sh nobody -c id")).check().text.count("nobody") == 1


async def test_the_layer_of_changes_holds_only_changes(
    orchard: Orchard, backend: LocalBackend, debian_image: str, busybox_root: str
):
    for image in (debian_image, busybox_root):
        box = await orchard.create(image)
        upper = backend.settings.home / "sandboxes" / box.id / "upper"
        await box.run(["true"])
        assert list(upper.rglob("*")) == []
        await box.run("echo 1 > /new")
        assert [path.name for path in upper.rglob("*")] == ["new"]


async def test_a_root_of_one_static_binary(orchard: Orchard, backend: LocalBackend, tmp_path: Path):
    source = tmp_path / "main.go"
    source.write_text('package main\n\nimport "os"\n\nfunc main() { os.Stdout.WriteString("alone in here\\n") }\n')
    root = tmp_path / "root"
    root.mkdir(mode=0o755)
    command("go", "build", "-o", root / "only", source, CGO_ENABLED="0")
    with tarfile.open(tmp_path / "root.tar", "w") as tar:
        tar.add(root, ".")
    import_tar(tmp_path / "root.tar", "only", settings=backend.settings)
    box = await orchard.create("only")
    assert (await box.run(["/only"])).check().stdout == b"alone in here\n"


async def test_archives_and_layouts_with_user_workdir_and_environment(
    orchard: Orchard, backend: LocalBackend, busybox_layer: bytes, tmp_path: Path
):
    config = {"Env": ["A=x y", "PATH=/bin"], "User": "12:34", "WorkingDir": "/bin"}
    layout = oci_layout(tmp_path / "layout", [busybox_layer, layer(hello="there")], **config)
    for kind in ("docker-archive", "oci-archive"):
        command("skopeo", "--insecure-policy", "copy", "-q", layout, f"{kind}:{tmp_path / kind}")
    for image in (layout, f"docker-archive:{tmp_path / 'docker-archive'}", f"oci-archive:{tmp_path / 'oci-archive'}"):
        box = await orchard.create(image)
        said = await box.run("busybox id -u; busybox id -g; busybox pwd; echo $A; busybox cat /hello")
        assert said.check().text == "12\n34\n/bin\nx y\nthere"
        assert box.info.image_digest is not None
        again = await backend.resolve_image(box.info.image_digest)  # by digest, without any source
        assert again == box.info.image_digest


async def test_more_layers_than_one_page_of_paths_would_hold(orchard: Orchard, busybox_layer: bytes, tmp_path: Path):
    layers = [layer(**{f"file{number}": str(number), "last": str(number)}) for number in range(40)]
    box = await orchard.create(oci_layout(tmp_path / "layout", [busybox_layer, *layers], Env=["PATH=/bin"]))
    said = await box.run("busybox cat /file0 /file17 /file39 /last")
    assert said.check().text == "0173939"


async def test_bad_images_say_why_at_once(backend: LocalBackend, busybox_layer: bytes, tmp_path: Path):
    other = oci_layout(tmp_path / "other", [busybox_layer], architecture="mips64le")
    (tmp_path / "bad.tar").write_bytes(b"no archive" * 100)
    closed = "localhost:1/none:1"  # nothing listens there
    cases = {
        other: "wrong_arch",
        "oci:/nowhere": "image_not_found",
        f"docker-archive:{tmp_path / 'bad.tar'}": "image_invalid",
        f"oci:{tmp_path}": "image_invalid",
        "sha256:" + "0" * 64: "image_not_found",
        closed: "registry_unreachable",
    }
    for image, reason in cases.items():
        began = time.monotonic()
        with pytest.raises(CreateFailed) as failed:
            await backend.resolve_image(image)
        assert (image, failed.value.reason) == (image, reason)
        assert "level=fatal" not in str(failed.value)
        assert (failed.value.hint is not None) == (image == closed)
        assert time.monotonic() - began < 60  # many times over: a skopeo that tries again and again takes minutes
    home = backend.settings.home
    for image in ("dir:relative", "oci:relative", "-x", "a b", "sha256:1234", "dir:/", f"dir:{home.parent}"):
        with pytest.raises(InvalidArgument):
            await backend.resolve_image(image)


async def test_an_archive_that_changed_is_fetched_anew(
    orchard: Orchard, backend: LocalBackend, busybox_layer: bytes, tmp_path: Path
):
    digests: list[str | None] = []
    for text in ("one", "two"):
        shutil.rmtree(tmp_path / "layout", ignore_errors=True)
        image = oci_layout(tmp_path / "layout", [busybox_layer, layer(text=text)])
        digests += [await backend.resolve_image(image), await backend.resolve_image(image)]
    assert digests[0] == digests[1] != digests[2] == digests[3]


async def test_the_host_without_what_is_private(orchard: Orchard, backend: LocalBackend, tmp_path: Path):
    secret = tmp_path / "secret"
    secret.write_text("secret")
    box = await orchard.create("host")
    script = f"""
for path in /etc/shadow /etc/ssh/ssh_host_rsa_key /etc/sudoers {secret} {backend.settings.home}; do
test -r $path && echo "reads $path"
done
ls -A /home /root /tmp /run /var/log /mnt /srv | grep -v -e : -e '^$'
touch /usr/bin/mine /root/mine /tmp/mine || true
"""
    assert (await box.run(script)).text == ""
    assert (await box.run("id -u; cat /etc/passwd | head -1")).text.startswith("0\nroot:")
    assert [path for path in ("/usr/bin/mine", "/tmp/mine", "/root/mine") if exists(path)] == []
    with pytest.raises(Unsupported):
        await box.commit("mine")


async def test_commit_makes_the_changes_a_layer(
    orchard: Orchard, backend: LocalBackend, debian_image: str, left: Callable[[str], list[str]]
):
    box = await orchard.create(debian_image)
    script = """
rm -rf /etc/apt /usr/bin/git; mkdir /etc/apt; echo new > /etc/apt/new
mkdir -p /work/inner; chown 5:6 /work/inner; chmod 2751 /work/inner; ln -s inner /work/link
mv /usr/share/perl5 /usr/share/moved; python3 -c "import os; os.setxattr('/work', 'user.note', b'kept')"
dd if=/dev/urandom of=/big bs=1M count=100 status=none; sha256sum < /big
"""
    made = await box.run(script)
    storage = Storage(backend.settings.home, find_powers())
    base = storage.find([debian_image])
    assert base is not None
    assert storage.buildah("from", "--pull-never", "--name", "commit-sb-killed", base.id).code == 0
    assert storage.containers() == ["commit-sb-killed"]  # of a commit whose process was killed
    name = f"{box.id}-done"
    digest = await box.commit(name)
    assert storage.containers() == []
    assert (await orchard.get(box.id)).reason == "deleted"
    assert left(box.id) == []
    later = LocalBackend(backend.settings)  # as after a restart that lost the answer
    assert await later.commit(box.id, name) == digest
    with pytest.raises(SandboxGone):
        await later.commit(box.id, "another-name")
    await later.close()
    for image in (digest, name):
        child = await orchard.create(image)
        assert child.info.image_digest == digest
        check = """
ls /etc/apt; ls /usr/bin/git /usr/share/perl5 2>/dev/null; ls -d /usr/share/moved
stat -c '%a %u:%g' /work/inner; readlink /work/link
python3 -c "import os; print(os.getxattr('/work', 'user.note').decode())"; echo $LANG; sha256sum < /big
"""
        expected = "new\n/usr/share/moved\n2751 5:6\ninner\nkept\nC.UTF-8\n" + made.check().text
        assert (await child.run(check)).text == expected
        await child.delete()
    storage.buildah("rmi", digest.removeprefix("sha256:"))


async def test_two_homes_that_want_one_image_fetch_it_once_each(
    settings: LocalSettings, busybox_layer: bytes, tmp_path: Path
):
    """Many at once on one home: one copy runs, the others wait and find it."""
    image = oci_layout(tmp_path / "layout", [busybox_layer, layer(once=str(tmp_path))])
    backends = [LocalBackend(settings) for _ in range(3)]
    digests = await asyncio.gather(*(each.resolve_image(image) for each in backends for _ in range(3)))
    assert len(set(digests)) == 1
    images = json.loads((settings.home / "storage" / "overlay-images" / "images.json").read_text())
    assert [each["digest"] for each in images].count(digests[0]) == 1
    for each in backends:
        await each.close()
