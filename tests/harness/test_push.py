"""A real harness goes to a real registry: its layers arrive there under the names by which nodes mount them."""

import json
from pathlib import Path

import pytest
from tests.support.cli import orchard
from tests.support.registry import registry

from orchard.core.config import cache_dir
from orchard.sandbox.toolnames import parse_tool


@pytest.mark.parametrize("harness", ["pi"], indirect=True)
def test_what_is_installed_is_pushed(harness: str, tmp_path: Path) -> None:
    env = {"ORCHARD_HOME": str(tmp_path / "home"), "ORCHARD_CACHE": str(cache_dir())}
    with registry(tmp_path / "registry") as served:
        done = orchard("harness", "install", harness, "--push", f"{served.at}/tools", "--plain-http", "--json", env=env)
        assert done.returncode == 0, done.stderr.decode()
        [told] = json.loads(done.stdout)
        assert [layer.partition("@")[0] for layer in told["layers"]] == ["node", "pi"]
        assert told["pushed"] == [f"{served.at}/tools/{layer}" for layer in told["layers"]]
        for layer in map(parse_tool, told["layers"]):
            [content] = served.manifest(f"tools/{layer.name}", layer.digest)["layers"]
            assert content["size"] > 10_000_000  # the registry keeps it only if its digest is the one that was named
            assert len(served.blob(f"tools/{layer.name}", content["digest"])) == content["size"]
