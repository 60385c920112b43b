"""The warnings of a namespace, by an account that is granted the right to follow them while the process runs."""

import asyncio
import itertools
import logging
from pathlib import Path
from typing import Any

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.support.waiting import until

from orchard.sandbox.kubernetes import KubernetesSettings, complaints
from orchard.sandbox.kubernetes.cache import PodCache
from orchard.sandbox.kubernetes.client import Cluster as Client
from orchard.sandbox.kubernetes.complaints import Complaints


def warning(name: str, namespace: str, uid: str) -> dict[str, Any]:
    """What a kubelet says of a Pod."""
    about = {"kind": "Pod", "name": "some", "namespace": namespace, "uid": uid}
    return {
        "apiVersion": "v1", "kind": "Event", "metadata": {"name": name}, "involvedObject": about,
        "type": "Warning", "reason": "FailedMount", "message": "its words",
    }  # fmt: skip


async def test_a_right_that_is_missing_is_named_once_and_made_use_of_when_it_is_granted(
    cluster: Cluster, namespace: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(complaints, "_REFUSED_SECONDS", 0.2)
    caplog.set_level(logging.WARNING, complaints.__name__)
    cluster.write_kubeconfig(tmp_path / "config", namespace)
    client = await Client.connect(KubernetesSettings(namespace=namespace, kubeconfig=tmp_path / "config"))
    heard, numbers = Complaints(client, PodCache(client)), itertools.count()
    following = asyncio.ensure_future(heard.run())
    try:
        await until(lambda: client.calls > 3)
        right = ("--verb=list,watch", "--resource=events")
        await asyncio.to_thread(cluster.kubectl, "-n", namespace, "create", "role", "hears", *right)
        binding = ("--role=hears", f"--serviceaccount={namespace}:default")
        await asyncio.to_thread(cluster.kubectl, "-n", namespace, "create", "rolebinding", "hears", *binding)

        async def told() -> bool:  # what was said before it listened is not heard
            await asyncio.to_thread(cluster.apply, warning(f"w-{next(numbers)}", namespace, "u"), namespace=namespace)
            return heard.about({"metadata": {"uid": "u"}}) is not None

        await until(told)
        last = heard.about({"metadata": {"uid": "u"}})
        assert (last and last.words) == "FailedMount: its words"
        (said,) = caplog.messages
        assert 'cannot list resource "events"' in said
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)
        await client.close()
