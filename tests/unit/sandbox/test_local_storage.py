"""The store's index of containers, in the form of older and of newer tools."""

import json
from pathlib import Path

import pytest

from orchard.core.errors import InternalError
from orchard.sandbox.local.powers import Powers
from orchard.sandbox.local.storage import Storage


@pytest.mark.parametrize("file", ["containers.json", "volatile-containers.json"])
def test_a_container_of_either_index_is_found(tmp_path: Path, file: str) -> None:
    index = tmp_path / "storage" / "overlay-containers"
    index.mkdir(parents=True)
    (index / file).write_text(json.dumps([{"id": "1", "names": ["commit-sb-1"], "layer": "abc"}]))
    storage = Storage(tmp_path, Powers())
    assert storage.containers() == ["commit-sb-1"]
    assert storage.layer_of("commit-sb-1") == storage.root / "overlay" / "abc" / "diff"
    with pytest.raises(InternalError, match="commit-sb-2"):
        storage.layer_of("commit-sb-2")
