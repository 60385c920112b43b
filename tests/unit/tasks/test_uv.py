import contextlib
import functools
import hashlib
import http.server
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from orchard.core.errors import TaskRefused, Unavailable
from orchard.tasks.release_pair.sdist import fetch
from orchard.tasks.uv import Platform, Request, environment, installed, locked, names_in

HERE = Platform("3.11", "x86_64", "glibc-2.36")


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[http.server.HTTPServer]:
    """A package index on loopback, set up the way a machine's own would be, in which ``plugin`` needs ``lib``."""
    for name, needs in (("lib", None), ("plugin", "lib"), ("other", None)):
        folder = tmp_path / "index" / name
        folder.mkdir(parents=True)
        built = wheel(folder, name, needs)
        digest = hashlib.sha256(built.read_bytes()).hexdigest()
        (folder / "index.html").write_text(f'<a href="{built.name}#sha256={digest}">{built.name}</a>')
    quiet = type("Quiet", (http.server.SimpleHTTPRequestHandler,), {"log_message": lambda *words: None})
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(quiet, directory=tmp_path / "index"))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    monkeypatch.setenv("ORCHARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    monkeypatch.setenv("UV_DEFAULT_INDEX", f"http://127.0.0.1:{server.server_port}/")
    with contextlib.ExitStack() as stack:
        stack.callback(server.server_close)
        stack.callback(thread.join)
        stack.callback(server.shutdown)
        yield server


def wheel(folder: Path, name: str, needs: str | None) -> Path:
    info = f"{name}-1.0.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n" + (f"Requires-Dist: {needs}\n" if needs else "")
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"NAME = {name!r}\n")
        archive.writestr(f"{info}/METADATA", metadata)
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/entry_points.txt", f"[console_scripts]\n{name} = {name}:main\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


async def test_the_library_takes_part_and_is_not_installed(index: http.server.HTTPServer) -> None:
    lock = await locked(Request(["plugin", "lib==1.0"], HERE, without="lib"))
    assert names_in(lock) == {"plugin"}
    site = await installed(lock, HERE)
    assert (site / "plugin.py").exists()
    assert not (site / "lib.py").exists()
    assert (site / "bin" / "plugin").exists()


async def test_the_second_time_needs_no_index(index: http.server.HTTPServer) -> None:
    request = Request(["other"], HERE)
    first = await installed(await locked(request), HERE)
    index.shutdown()
    index.server_close()
    assert await installed(await locked(request), HERE) == first
    assert (first / "other.py").read_text() == "NAME = 'other'\n"


async def test_what_cannot_be_had_is_refused(index: http.server.HTTPServer) -> None:
    with pytest.raises(TaskRefused, match="nothing-of-the-kind") as caught:
        await locked(Request(["nothing-of-the-kind"], HERE))
    assert caught.value.reason == "dependencies"
    with pytest.raises(TaskRefused, match="no requirement") as malformed:
        await locked(Request(["other", "pytest<<8.4"], HERE))
    assert malformed.value.reason == "dependencies"


async def test_an_index_out_of_reach_is_no_refusal(
    index: http.server.HTTPServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:9/simple")
    with pytest.raises(Unavailable, match=r"127\.0\.0\.1"):
        await locked(Request(["nothing-of-the-kind"], HERE))


async def test_a_source_distribution_is_fetched_once_checked_and_mended(
    index: http.server.HTTPServer, tmp_path: Path
) -> None:
    archive_of(tmp_path / "index" / "other")
    first = await fetch("Other", "1.0")
    assert first.tree["other.py"].data == b"NAME = 1\n"
    (kept,) = (tmp_path / "cache/sdists").glob("*.archive")
    kept.write_bytes(b"harmed")
    assert (await fetch("other", "1.0")).sha256 == first.sha256
    index.shutdown()
    index.server_close()
    assert (await fetch("other", "1.0")).tree == first.tree


async def test_an_archive_that_is_not_the_indexs_is_refused(index: http.server.HTTPServer, tmp_path: Path) -> None:
    archive_of(tmp_path / "index" / "other", digest="0" * 64)
    with pytest.raises(TaskRefused, match="SHA-256") as caught:
        await fetch("other", "1.0")
    assert caught.value.reason == "no_sdist"


async def test_wheels_alone_are_no_source(index: http.server.HTTPServer) -> None:
    with pytest.raises(TaskRefused, match="no source distribution"):
        await fetch("other", "1.0")


def archive_of(folder: Path, digest: str | None = None) -> Path:
    """Add a source distribution to a package's folder of the index."""
    path = folder / "other-1.0.tar.gz"
    with tarfile.open(path, "w:gz") as archive:
        info = tarfile.TarInfo("other-1.0/other.py")
        info.size = len(b"NAME = 1\n")
        archive.addfile(info, io.BytesIO(b"NAME = 1\n"))
    digest = digest or hashlib.sha256(path.read_bytes()).hexdigest()
    page = folder / "index.html"
    page.write_text(page.read_text() + f'<a href="{path.name}#sha256={digest}">{path.name}</a>')
    return path


def test_pips_settings_count_where_uv_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("UV_DEFAULT_INDEX", "UV_INDEX", "UV_INDEX_URL", "SSL_CERT_FILE", "PIP_INDEX_URL", "PIP_CERT"):
        monkeypatch.delenv(name, raising=False)
    config = tmp_path / "pip.conf"
    config.write_text(
        "[global]\nindex-url = http://127.0.0.1:1/a\nextra-index-url =\n  http://127.0.0.1:1/b\n  http://127.0.0.1:1/c\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(config))
    found = environment()
    assert found["UV_DEFAULT_INDEX"] == "http://127.0.0.1:1/a"
    assert found["UV_INDEX"] == "http://127.0.0.1:1/b http://127.0.0.1:1/c"
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:1/env")
    assert environment()["UV_DEFAULT_INDEX"] == "http://127.0.0.1:1/env"
    monkeypatch.setenv("UV_DEFAULT_INDEX", "http://127.0.0.1:1/own")
    assert environment()["UV_DEFAULT_INDEX"] == "http://127.0.0.1:1/own"
    assert "UV_INDEX" not in environment()
