"""What images are, as their registry tells it: digest, configuration and architectures, asked by skopeo.

A registry that does not answer us may answer the nodes, and a node may have credentials of its own: then the kubelet
has the last word, and its words are read in ``pulls``.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import logging
import os
import re
import shutil
import subprocess
import time
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import cast

from orchard.core.config import base_env
from orchard.core.errors import CreateFailed, NotFound, Unauthorized
from orchard.sandbox.kubernetes.capacity import accepts
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.fresh import Fresh
from orchard.sandbox.kubernetes.objects import Json, part, parts
from orchard.sandbox.kubernetes.pod import ImageFacts
from orchard.sandbox.kubernetes.settings import KubernetesSettings
from orchard.sandbox.kubernetes.turns import Turns
from orchard.sandbox.local.failures import reason_in, said, unanswered
from orchard.sandbox.local.images import full_name

_log = logging.getLogger(__name__)
_ASK_SECONDS = 8.0  # until a registry counts as silent: a wrong name is to be told within ten seconds
_AT_ONCE = 4
_FRESH_SECONDS = 60.0  # that a tag, the nodes and the credentials are believed
_SILENT_SECONDS = 30.0  # that a registry which did not answer is not asked again
_KEPT, _SILENT_KEPT = 2000, 1000
_LOGIN = ".dockerconfigjson"
_LABEL, _PART = r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?", r"[a-z0-9]+(?:(?:\.|__?|-+)[a-z0-9]+)*"
_HOST = rf"(?:{_LABEL}(?:\.{_LABEL})*|\[[0-9A-Fa-f:]+\])(?::[0-9]+)?"
_DIGEST = r"sha256:[0-9a-f]{64}|sha512:[0-9a-f]{128}"
_NAME = re.compile(rf"{_HOST}(?:/{_PART})+(?::\w[\w.-]{{0,127}})?(?:@(?:{_DIGEST}))?", re.A)
_LONGEST = 600  # characters of a reference: 255 of a name, and its tag and digest


@dataclass(frozen=True)
class _Answer:
    code: int | None
    """None: not in time."""
    out: bytes
    words: str


class Images:
    """Images as one process knows them. Those named by digest are asked for once.

    Args:
        settings: pull secrets, registries, where Pods may go.
        cluster: for the pull secrets and the nodes.
    """

    def __init__(self, settings: KubernetesSettings, cluster: Cluster) -> None:
        self._settings, self._cluster = settings, cluster
        self._turns = Turns(_AT_ONCE)
        self._known: OrderedDict[str, ImageFacts] = OrderedDict()
        self._asks: dict[tuple[str, str], asyncio.Task[ImageFacts]] = {}
        """By tenant and name: nobody waits for another tenant's turn."""
        self._tags: dict[tuple[str, str], float] = {}
        self._silent: OrderedDict[str, float] = OrderedDict()
        self._nodes = Fresh(self._architectures, _FRESH_SECONDS)
        self._login = Fresh(self._logins, _FRESH_SECONDS)

    async def facts(self, image: str, tenant: str = "") -> ImageFacts | None:
        """Return what the registry says of ``image``; None where there is no skopeo to ask it. Tenants ask in turn.

        Raises:
            CreateFailed: image_not_found, image_auth, image_invalid, wrong_arch, registry_unreachable.
        """
        name = full_name(self._settings.reference(image))
        if len(name) > _LONGEST or not _NAME.fullmatch(name):  # nobody need be asked, nor a Pod made
            raise CreateFailed(
                f"image {image[:_LONGEST]!r} is no reference to an image", reason="image_invalid",
                hint="[HOST[:PORT]/]PATH[:TAG][@DIGEST]: a path is of a-z 0-9 . _ - and /",
            )  # fmt: skip
        if shutil.which("skopeo") is None:
            return None
        nodes = await self._nodes.get()
        own = (tenant, name)
        asking = self._asks.get(own)
        if asking is None or (asking.done() and not self._believed(own, asking)):
            asking = self._asks[own] = asyncio.ensure_future(self._ask(own, nodes))
            asking.add_done_callback(_seen)
            self._forget()
        return fitting(name, await asyncio.shield(asking), nodes)

    async def for_pod(self, image: str, tenant: str) -> ImageFacts | None:
        """Return the same, or None where the kubelet is to find out: it may reach more, and has its own credentials.

        Raises:
            CreateFailed: image_not_found, image_invalid, wrong_arch.
        """
        try:
            return await self.facts(image, tenant)
        except CreateFailed as error:
            if error.reason not in ("registry_unreachable", "image_auth"):
                raise
            _log.info("the kubelet is to find out: %s", error)
            return None

    def _believed(self, own: tuple[str, str], asking: asyncio.Task[ImageFacts]) -> bool:
        if asking.cancelled() or asking.exception() is not None:
            return False
        return "@" in own[1] or time.monotonic() - self._tags.get(own, 0.0) < _FRESH_SECONDS

    def _forget(self) -> None:
        if len(self._asks) > _KEPT:
            for own in [own for own, asking in self._asks.items() if asking.done()]:
                del self._asks[own]
                self._tags.pop(own, None)

    async def _ask(self, own: tuple[str, str], nodes: frozenset[str]) -> ImageFacts:
        name = own[1]
        repository, _, digest = name.partition("@")
        registry, _, path = repository.partition("/")
        repository = f"{registry}/{path.partition(':')[0]}"
        raw = await self._skopeo(own, "--raw", f"docker://{repository}@{digest}" if digest else f"docker://{name}")
        digest = digest or "sha256:" + hashlib.sha256(raw).hexdigest()
        self._tags[own] = time.monotonic()
        known = self._known.get(f"{repository}@{digest}")
        if known is None:
            with _told_by_registry(name):
                each = platforms(cast("Json", json.loads(raw)))
            ours = [one for arch, one in each.items() if arch in nodes]
            first = next(iter([*ours, *each.values()]), digest)
            config = await self._skopeo(own, "--config", f"docker://{repository}@{first}")
            with _told_by_registry(name):
                known = _facts(repository, digest, json.loads(config), list(each))
            self._known[f"{repository}@{digest}"] = known
            if len(self._known) > _KEPT:
                self._known.popitem(last=False)
        return known

    async def _skopeo(self, own: tuple[str, str], what: str, where: str) -> bytes:
        tenant, name = own
        registry = name.partition("/")[0]
        argv = ["skopeo", "inspect", what]
        if registry in self._settings.insecure_registries:
            argv.append("--tls-verify=false")
        login = await self.login()
        async with self._turns.turn(tenant):
            if time.monotonic() < self._silent.get(registry, 0.0):
                raise CreateFailed(f"image {name!r}: {registry} has just not answered", reason="registry_unreachable")
            answer = await asyncio.to_thread(_run, argv, where, login)
        if answer.code == 0:
            return answer.out
        if answer.code is None or unanswered(answer.words):  # any other answer may be of this one image
            self._mark_silent(registry)
        reason = reason_in(answer.words) or "registry_unreachable"
        raise CreateFailed(f"image {name!r}: {answer.words[-500:]}", reason=reason)

    def _mark_silent(self, registry: str) -> None:
        """Remember it for a while; who names a thousand more of them has the first one asked again."""
        self._silent[registry] = time.monotonic() + _SILENT_SECONDS
        self._silent.move_to_end(registry)
        if len(self._silent) > _SILENT_KEPT:
            self._silent.popitem(last=False)

    async def _architectures(self) -> frozenset[str]:
        """Return those of the nodes that the Pods may go to; none where it is not known."""
        chosen = self._settings.node_selector.get("kubernetes.io/arch")
        if chosen:
            return frozenset((chosen,))
        nodes: list[Json] = []
        try:
            async for page in self._cluster.pages("/api/v1/nodes"):
                nodes += page["items"]
        except Unauthorized:
            return frozenset()
        selector, tolerations = self._settings.nodes, self._settings.tolerations
        may = [each for each in nodes if accepts(each, selector, tolerations)]
        found = (part(each, "status", "nodeInfo").get("architecture") for each in may)
        return frozenset(str(each) for each in found if each)

    async def login(self) -> bytes | None:
        """Return the secrets as one file of credentials, or None: there are none for us."""
        return await self._login.get()

    async def _logins(self) -> bytes | None:
        """A pull secret that may not be read is the kubelet's alone; of two for one registry that for pushes counts."""
        auths: Json = {}
        for name in (*self._settings.pull_secrets, *self._settings.push_secrets):
            try:
                secret = await self._cluster.get(self._cluster.path("secrets", name))
                auths |= part(json.loads(base64.b64decode(part(secret, "data").get(_LOGIN) or "e30=")), "auths")
            except (NotFound, Unauthorized, ValueError):
                continue
        return json.dumps({"auths": auths}).encode() if auths else None


def _run(argv: Sequence[str], where: str, login: bytes | None) -> _Answer:
    """Run skopeo; the credentials are in a file without a name, which ends with it."""
    held = None
    try:
        if login is not None:
            held = os.memfd_create("login")
            os.write(held, login)
            argv = [*argv, f"--authfile=/proc/self/fd/{held}"]
        done = subprocess.run(
            [*argv, where], capture_output=True, env={**base_env(), "LC_ALL": "C"}, timeout=_ASK_SECONDS, check=False,
            pass_fds=() if held is None else (held,),
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _Answer(None, b"", f"no answer in {_ASK_SECONDS:g} s")
    finally:
        if held is not None:
            os.close(held)
    return _Answer(done.returncode, done.stdout, said(done.stderr.decode("utf-8", "replace")))


@contextmanager
def _told_by_registry(name: str) -> Generator[None]:
    """Callers name registries, so what is read in the block may be anything."""
    try:
        yield
    except (ValueError, RecursionError, TypeError, AttributeError, KeyError) as error:
        text = f"image {name!r}: what its registry tells of it has not the form of an image"
        raise CreateFailed(text, reason="image_invalid") from error


def platforms(manifest: Json) -> dict[str, str]:
    """Return the digest for each architecture of an index; nothing for an image."""
    found: dict[str, str] = {}
    for each in parts(manifest, "manifests"):
        platform = part(each, "platform")
        if platform.get("os") == "linux":
            found.setdefault(str(platform.get("architecture")), str(each["digest"]))
    return found


def _facts(repository: str, digest: str, document: Json, architectures: Sequence[str]) -> ImageFacts:
    config = part(document, "config")
    pairs = (item.partition("=") for item in cast("list[str]", config.get("Env") or []))
    own = str(document.get("architecture") or "")
    return ImageFacts(
        reference=f"{repository}@{digest}",
        digest=digest,
        user=str(config.get("User") or ""),
        workdir=str(config.get("WorkingDir") or "/"),
        env={name: value for name, _, value in pairs},
        entrypoint=(*(config.get("Entrypoint") or ()), *(config.get("Cmd") or ())),
        architectures=tuple(architectures) or ((own,) if own else ()),
    )


def fitting(name: str, facts: ImageFacts, nodes: frozenset[str]) -> ImageFacts:
    """Return the facts with those architectures that a Pod must be held to: none where all nodes will do."""
    runs = tuple(each for each in facts.architectures if each in nodes)
    if nodes and facts.architectures and not runs:
        theirs = ", ".join(facts.architectures)
        raise CreateFailed(
            f"image {name!r} is for {theirs}, the nodes are {', '.join(sorted(nodes))}", reason="wrong_arch"
        )
    return replace(facts, architectures=runs if nodes - set(runs) else ())


def _seen(asking: asyncio.Task[ImageFacts]) -> None:
    if not asking.cancelled():
        asking.exception()  # whoever waits raises it; there may be nobody left
