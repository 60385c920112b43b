"""The repository of committed images: what it has, and how skopeo brings more there.

Base layers are not fetched: the registry has them, or takes them over from the base's own repository.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from orchard.core.config import base_env
from orchard.core.errors import CreateFailed, MachineUnfit, NotFound, Unauthorized, Unavailable
from orchard.core.tasks import finish
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.local.failures import reason_in, said
from orchard.sandbox.local.process import DIE_WITH_US

_ASK_SECONDS = 30.0
_COPY_SECONDS = 1800.0


@dataclass(frozen=True)
class Base:
    """An image for one architecture."""

    reference: str
    """``repository@sha256:…``."""
    manifest: Json
    config: Json


class Registry:
    """Reads and writes images as the settings say.

    Args:
        settings: registries that are asked by plain HTTP.
        images: for the credentials.
    """

    def __init__(self, settings: KubernetesSettings, images: Images) -> None:
        self._settings, self._images = settings, images
        self._placed: set[tuple[str, str]] = set()

    async def digest(self, reference: str) -> str | None:
        """Return the digest of ``repository:tag``, or None: there is no such image.

        Raises:
            Unauthorized: the registry refuses us.
            Unavailable: it does not answer.
        """
        try:
            raw = await self._inspect(reference, "--raw")
        except NotFound:
            return None
        return f"sha256:{hashlib.sha256(raw).hexdigest()}"

    async def base(self, reference: str, architecture: Callable[[], Awaitable[str | None]]) -> Base:
        """Return what ``repository@sha256:…`` is for one architecture, asked for where there are several.

        Raises:
            NotFound: it is there no longer.
            Unauthorized: the registry refuses us.
            Unavailable: it does not answer.
        """
        manifest = cast("Json", json.loads(await self._inspect(reference, "--raw")))
        several = [each for each in parts(manifest, "manifests") if part(each, "platform").get("os") == "linux"]
        if several:
            wanted = await architecture() if len(several) > 1 else None
            ours = [each for each in several if part(each, "platform").get("architecture") == wanted]
            reference = f"{reference.partition('@')[0]}@{(ours or several)[0]['digest']}"
            manifest = cast("Json", json.loads(await self._inspect(reference, "--raw")))
        config = cast("Json", json.loads(await self._inspect(reference, "--config", "--raw")))
        return Base(reference, manifest, config)

    async def push(self, base: Base, image: Path, reference: str) -> None:
        """Push the image that lies in the folder ``image``, whose other layers are those of ``base``.

        Raises:
            Unauthorized: the registry refuses us.
            Unavailable: it does not answer, or not in time.
        """
        repository = reference.rpartition(":")[0]
        own, _, digest = base.reference.partition("@")
        if own != repository and (repository, digest) not in self._placed:
            await self._copy(f"docker://{base.reference}", f"{repository}:base-{digest.removeprefix('sha256:')[:24]}")
            self._placed.add((repository, digest))
        try:
            await self._copy(f"dir:{image}", reference)
        except (NotFound, Unavailable):
            self._placed.discard((repository, digest))  # somebody may have removed it
            raise

    async def _inspect(self, reference: str, *what: str) -> bytes:
        return await self._run(["inspect", *what, *self._plain("", reference)], [f"docker://{reference}"], _ASK_SECONDS)

    async def _copy(self, source: str, reference: str) -> None:
        plain = [*self._plain("src-", source.removeprefix("docker://")), *self._plain("dest-", reference)]
        words = ["--insecure-policy", "copy", "--quiet", "--preserve-digests", "--remove-signatures", *plain]
        await self._run(words, [source, f"docker://{reference}"], _COPY_SECONDS)

    def _plain(self, side: str, reference: str) -> list[str]:
        insecure = reference.partition("/")[0] in self._settings.insecure_registries
        return [f"--{side}tls-verify=false"] if insecure else []

    async def _run(self, words: Sequence[str], images: Sequence[str], seconds: float) -> bytes:
        """Run skopeo; the credentials are in a file without a name. It is killed if the caller is cancelled."""
        login, held = await self._images.login(), os.memfd_create("login")
        try:
            os.write(held, login or b'{"auths":{}}')
            words = [*words, *([f"--authfile=/proc/self/fd/{held}"] if login else []), *images]
            code, output, said_ = await _ended(words, held, seconds)
        finally:
            os.close(held)
        if code == 0:
            return output
        raise _failed(images[-1].removeprefix("docker://"), said_)


async def _ended(words: Sequence[str], held: int, seconds: float) -> tuple[int | None, bytes, str]:
    program = shutil.which("skopeo")
    if program is None:
        raise MachineUnfit("committing needs skopeo on the machine of the service", hint="install skopeo")
    process = await asyncio.create_subprocess_exec(
        *DIE_WITH_US, program, *words, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE, pass_fds=[held],
        env={**base_env(), "LC_ALL": "C"},
    )  # fmt: skip
    try:
        async with asyncio.timeout(seconds):
            output, told = await process.communicate()
    except TimeoutError:
        return None, b"", f"no answer in {seconds:g} s"
    finally:
        if process.returncode is None:
            process.kill()
            await finish(process.wait())
    return process.returncode, output, said(told.decode("utf-8", "replace"))


def _failed(reference: str, words: str) -> Exception:
    reason, text = reason_in(words), f"image {reference!r}: {words[-500:]}"
    if reason == "image_not_found":
        return NotFound(text)
    if reason == "image_auth":
        return Unauthorized(text, hint="the secret that push_secrets names must allow to push there")
    if reason in (None, "registry_unreachable"):
        return Unavailable(text, reason="registry")
    return CreateFailed(text, reason=reason)
