"""What is told of an image's name, and of registries that do not answer, without a cluster."""

from typing import cast

import pytest

from orchard.core.errors import CreateFailed
from orchard.sandbox.kubernetes.client import Cluster
from orchard.sandbox.kubernetes.images import Images
from orchard.sandbox.kubernetes.settings import KubernetesSettings

NODES = {"kubernetes.io/arch": "amd64"}  # so that no cluster is asked for them


def images(*, insecure: str = "") -> Images:
    settings = KubernetesSettings(node_selector=NODES, insecure_registries=[insecure])
    return Images(settings, cast("Cluster", None))


@pytest.mark.parametrize(
    "name",
    ["a b", "-x", "--help", "Busybox", "127.0.0.1:1/", "127.0.0.1:1/a//b", "127.0.0.1:1/a b", "127.0.0.1:1/a:-tag",
     "127.0.0.1:1/a@sha256:12", "127.0.0.1:x/a", "a\nb", "b\u00fcsy", "oci:/folder", f"{'a' * 200_000}.:"],
)  # fmt: skip
async def test_a_name_that_is_no_reference_is_told_before_anybody_is_asked(name: str) -> None:
    with pytest.raises(CreateFailed) as caught:
        await images().for_pod(name)
    assert caught.value.reason == "image_invalid"


@pytest.mark.parametrize(
    "rest", ["a", "a/b_c/d-e.f__g:1.0_X", f"a@sha256:{'0' * 64}", f"a:tag@sha256:{'0' * 64}", "a--b:latest"]
)
async def test_the_registry_of_a_reference_is_asked(rest: str) -> None:
    with pytest.raises(CreateFailed) as caught:
        await images(insecure="127.0.0.1:1").facts(f"127.0.0.1:1/{rest}")
    assert caught.value.reason == "registry_unreachable"
