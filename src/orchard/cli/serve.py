"""``orchard serve``."""

from __future__ import annotations

import asyncio
import logging
import resource
import signal
import ssl
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchard.cli import console
from orchard.core.config import data_dir
from orchard.core.errors import InvalidArgument

if TYPE_CHECKING:
    from orchard.sandbox.protocol import Backend
    from orchard.service.server import Server

app = typer.Typer(add_completion=False)
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
DEFAULT_PORT = 8420


def keys_path() -> Path:
    """Return where the keys of a service on this machine are kept by default."""
    return data_dir() / "service" / "keys.toml"


@app.command(epilog=console.EXIT_CODES)
def serve(
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="0 picks a free one.", min=0, max=65535)] = DEFAULT_PORT,
    backend: Annotated[
        str, typer.Option(help="local, or kubernetes (as ORCHARD_KUBERNETES, a TOML file, says).")
    ] = "local",
    keys: Annotated[Path | None, typer.Option(help="File of API keys; see `orchard keys`.")] = None,
    no_auth: Annotated[bool, typer.Option("--no-auth", help="Ask for no key; on loopback only.")] = False,
    allow_host_images: Annotated[
        bool, typer.Option("--allow-host-images", help="Let callers use host and dir:, folders of this machine.")
    ] = False,
    allow_image_files: Annotated[
        bool, typer.Option("--allow-image-files", help="Let callers use oci:, archives and docker-daemon: here.")
    ] = False,
    tls_certificate: Annotated[Path | None, typer.Option(help="PEM file; with --tls-key: speak TLS.")] = None,
    tls_key: Annotated[Path | None, typer.Option(help="PEM file.")] = None,
    log_level: Annotated[str, typer.Option(help="debug, info, warning or error.")] = "info",
) -> None:
    """Serve sandboxes of this machine over HTTP, until SIGINT or SIGTERM. Sandboxes live on, and a restart finds them.

    At the first start an API key is made and shown once. The OpenAPI document is at /openapi.json.

    Example: orchard serve --port 8420
    """
    _set_up_logs(log_level)
    if no_auth and host not in _LOOPBACK:
        raise InvalidArgument("--no-auth is for loopback only", field="host", hint="leave --host out, or use keys")
    _check_tls(tls_certificate, tls_key)
    from orchard.sandbox.backends import open_backend

    opened = open_backend(backend)
    path = None if no_auth else keys or keys_path()
    _more_files()
    from orchard.service.app import Service
    from orchard.service.options import ServiceOptions
    from orchard.service.server import Server, configure

    def listening(port: int) -> None:
        if path is not None:
            _first_key(path)  # only now: what cannot serve makes none
        else:
            console.say("WARNING: no API key is asked for: every program on this machine may use this service")
        if host not in _LOOPBACK and tls_certificate is None:
            console.say("WARNING: no TLS: whoever can watch this network sees the keys; put a proxy with TLS in front")
        shown = f"[{host}]" if ":" in host else host
        console.out(f"serving {'https' if tls_certificate else 'http'}://{shown}:{port} (backend {backend})")
        sys.stdout.flush()

    service = Service(opened, ServiceOptions(path, allow_host_images, allow_image_files))
    config = configure(service.app, host=host, port=port, certificate=tls_certificate, key=tls_key)
    server = Server(config, service.stopping, listening)
    with asyncio.Runner(loop_factory=server.config.get_loop_factory()) as runner:
        runner.run(_serve(server, opened))


async def _serve(server: Server, backend: Backend) -> None:
    await backend.capabilities()  # raises where no sandbox could be made
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, server.stop)
    await server.serve()


def _first_key(path: Path) -> None:
    from orchard.service.keys import KeyRing

    ring = KeyRing(path)
    if ring.keys:
        return
    console.out(f"API key, shown this once: {ring.add('default')}")
    console.say(f"its hash is kept in {path}; clients send it as ORCHARD_API_KEY")


def _check_tls(certificate: Path | None, key: Path | None) -> None:
    """Refuse files that uvicorn would fail on without naming them."""
    if certificate is None:
        if key is not None:
            raise InvalidArgument("--tls-key needs --tls-certificate", field="tls_certificate")
        return
    for path in (certificate, key):
        if path is not None:
            path.open("rb").close()
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)
    except ssl.SSLError as error:
        raise InvalidArgument(
            f"{certificate} and {key or 'the key in it'} are no PEM certificate with its key: {error.reason}",
            field="tls_certificate",
        ) from error


def _set_up_logs(level: str) -> None:
    number = logging.getLevelNamesMapping().get(level.upper())
    if number is None:
        raise InvalidArgument(f"log level must be debug, info, warning or error, not {level!r}", field="log_level")
    logging.basicConfig(level=number, stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s %(message)s")


def _more_files() -> None:
    """Raise the soft limit of open files to the hard one: each stream takes two."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
