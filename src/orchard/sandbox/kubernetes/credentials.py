"""Where the API server is and who we are: kubeconfig (exec plugins too) or the service account of our own Pod.

kubernetes_asyncio reads both and makes the TLS session. Its models are not used: objects are plain JSON.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import aiohttp

from orchard.core.config import env
from orchard.core.errors import InvalidArgument
from orchard.sandbox.kubernetes.settings import KubernetesSettings

_LONGEST_LINE = 2 << 20  # bytes of an event of a watch; an object has 1.5 MiB at most
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


class Configuration(Protocol):
    """The slice of the library's ``Configuration`` that is used here."""

    host: str
    proxy: str | None
    tls_server_name: str | None

    def get_api_key_with_prefix(self, identifier: str) -> Awaitable[str | None]: ...  # noqa: D102


@dataclass(frozen=True)
class Access:
    """A session to one API server; whoever asked for it closes it."""

    session: aiohttp.ClientSession
    configuration: Configuration
    namespace: str

    async def request(
        self, method: str, path: str, *, timeout: aiohttp.ClientTimeout, headers: dict[str, str], **given: Any
    ) -> aiohttp.ClientResponse:
        """Send one request below the server's address; return the answer, its body unread.

        Raises:
            InvalidArgument: the address is none, or the server's certificate is not the one that was named.
        """
        key = await self.configuration.get_api_key_with_prefix("BearerToken")
        sent, host = headers | ({"Authorization": key} if key else {}), self.configuration.host
        try:
            return await self.session.request(
                method, host + path, headers=sent, timeout=timeout, proxy=self.configuration.proxy,
                server_hostname=self.configuration.tls_server_name, **given,
            )  # fmt: skip
        except (aiohttp.InvalidURL, aiohttp.ClientConnectorCertificateError) as error:  # no other try mends it
            raise InvalidArgument(
                f"the API server at {host!r} cannot be asked: {error}", field="kubeconfig",
                hint="are its address and its certificate authority those of this cluster?",
            ) from error  # fmt: skip


async def find_access(settings: KubernetesSettings) -> Access:
    """Read kubeconfig or service account, and return a session; nothing is sent yet.

    Raises:
        InvalidArgument: neither is there, the context is unknown, a plugin failed, or the library is missing.
    """
    try:
        client, library = await asyncio.to_thread(_library)  # over a second of work
    except ImportError as error:
        raise InvalidArgument(
            "the kubernetes backend needs a library that is not installed", field="backend",
            hint="pip install 'orchard-env[kubernetes]'",
        ) from error  # fmt: skip
    configuration = client.Configuration()
    try:
        namespace = await _read(library, settings, configuration)
        session = _session(configuration)
    except Exception as error:  # the library and its plugins raise whatever befalls them; all of it means no access
        raise InvalidArgument(
            f"no way to a cluster: {type(error).__name__}: {error}", field="kubeconfig",
            hint="set KUBECONFIG, or run in a Pod with a service account",
        ) from error  # fmt: skip
    chosen = settings.namespace or namespace or "default"
    return Access(session, cast("Configuration", configuration), chosen)


class _Connector(aiohttp.TCPConnector):
    """The library's, which aborts what did not end by itself; Pythons up to 3.11.2 break on one that has ended."""

    def _close(self, *, abort_ssl: bool = False) -> list[Awaitable[object]]:
        self._forget_ended()
        return super()._close(abort_ssl=abort_ssl)

    def _cleanup_closed(self) -> None:
        self._forget_ended()
        super()._cleanup_closed()

    def _forget_ended(self) -> None:
        broken = self._cleanup_closed_transports
        broken[:] = [one for one in broken if getattr(one, "_ssl_protocol", one) is not None]


def _session(configuration: Any) -> aiohttp.ClientSession:
    """Return what the library itself would use, but for the end of broken connections, which it leaves to chance."""
    context = ssl.create_default_context(cafile=configuration.ssl_ca_cert)
    if configuration.cert_file:
        context.load_cert_chain(configuration.cert_file, keyfile=configuration.key_file)
    if not configuration.verify_ssl:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if configuration.disable_strict_ssl_verification:
        context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    connector = _Connector(limit=0, ssl=context, enable_cleanup_closed=aiohttp.connector.NEEDS_CLEANUP_CLOSED)
    return aiohttp.ClientSession(connector=connector, trust_env=True, read_bufsize=_LONGEST_LINE)


def _library() -> tuple[Any, Any]:
    from kubernetes_asyncio import client, config

    return client, config


async def _read(library: Any, settings: KubernetesSettings, configuration: Any) -> str | None:
    named = str(settings.kubeconfig) if settings.kubeconfig else env("KUBECONFIG")
    if named is None and env("KUBERNETES_SERVICE_HOST"):
        library.load_incluster_config(client_configuration=configuration)
        return (await asyncio.to_thread(_OWN_NAMESPACE.read_text)).strip()
    loader = await library.load_kube_config(
        config_file=named or str(Path.home() / ".kube" / "config"), context=settings.context,
        client_configuration=configuration, persist_config=False,
    )  # fmt: skip
    return loader.current_context["context"].get("namespace")
