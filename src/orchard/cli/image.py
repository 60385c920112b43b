"""``orchard image``: the local store of images."""

from __future__ import annotations

import json as json_module
from typing import Annotated, Any

import typer

from orchard.cli import console
from orchard.cli.options import Json
from orchard.core.errors import NotFound, OrchardError
from orchard.sandbox.local import LocalBackend
from orchard.sandbox.local.images import local_name
from orchard.sandbox.local.powers import find_powers
from orchard.sandbox.local.settings import LocalSettings
from orchard.sandbox.local.storage import Storage

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Images in this machine's store.", epilog=console.EXIT_CODES
)


def _store() -> Storage:
    return Storage(LocalSettings().home, find_powers())


@app.command("import", epilog=console.EXIT_CODES)
def import_(
    source: Annotated[
        str, typer.Argument(help="python:3.12, oci:/path, oci-archive:/file, docker-archive:/file, docker-daemon:NAME")
    ],
    name: Annotated[str | None, typer.Option(help="A further name, under which sandboxes may ask for it.")] = None,
    json: Json = False,
) -> None:
    """Fetch an image into the store, and print its digest.

    Example: orchard image import docker-archive:/tmp/app.tar --name app
    """

    async def work() -> str | None:
        backend = LocalBackend()
        try:
            with console.working(f"fetching {source}"):
                return await backend.resolve_image(source)
        finally:
            await backend.close()

    digest = console.run_async(work())
    if name and digest:
        _tag(_store(), digest, name)
    console.out_json({"digest": digest, "name": name}) if json else console.out(digest or source)


def _tag(store: Storage, digest: str, name: str) -> None:
    found = next((image for image in _images(store) if image["digest"] == digest), None)
    if found is None:
        raise NotFound(f"image {digest} is not in the store")
    _buildah(store, "tag", found["id"], local_name(name))


def _images(store: Storage) -> list[dict[str, Any]]:
    return json_module.loads(_buildah(store, "images", "--json", "--no-trunc") or "[]") or []


def _buildah(store: Storage, *arguments: str) -> str:
    done = store.buildah(*arguments)
    if done.code:
        raise OrchardError(f"buildah {arguments[0]} failed: {done.output.strip()[-300:]}")
    return done.output


@app.command("ls", epilog=console.EXIT_CODES)
def list_(json: Json = False) -> None:
    """List the images of the store.

    Example: orchard image ls --json
    """
    found = _images(_store())
    if json:
        facts = [{name: image.get(name) for name in ("digest", "names", "size", "createdatraw")} for image in found]
        console.out_json(facts)
        return
    rows = [
        (image["digest"][:19], " ".join(image.get("names") or ["-"]), str(image.get("size", "-"))) for image in found
    ]
    console.out_table(("DIGEST", "NAMES", "SIZE"), rows)


@app.command(epilog=console.EXIT_CODES)
def rm(image: Annotated[str, typer.Argument(help="A digest (sha256:…) or a name.")]) -> None:
    """Remove an image from the store. Sandboxes that run from it go on.

    Example: orchard image rm app
    """
    store = _store()
    names = {image, local_name(image)} if not image.startswith("sha256:") else {image}
    for found in _images(store):
        if found["digest"] in names or names & set(found.get("names") or []):
            _buildah(store, "rmi", "--force", found["id"])
            console.out(found["digest"])
            return
    raise NotFound(f"no image {image} in the store", hint="`orchard image ls` shows what there is")
