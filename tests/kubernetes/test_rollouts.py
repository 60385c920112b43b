"""The demo's rollouts and grading on the cluster, by one flag, through the chart's own service: verdicts as here."""

import asyncio
import json
import os
import secrets
from pathlib import Path

import pytest
from tests.kubernetes.cluster.cluster import Cluster
from tests.kubernetes.deployment import deployed
from tests.support.service import ORCHARD

from orchard.core.config import cache_dir
from orchard.rollout.folder import read_run
from orchard.trajectories import RolloutRecord

TASK = "xmltodict@0.14.1..0.14.2"
REWARDS = {"gold": 1.0, "script:commit-and-fix": 1.0, "noop": 0.0, "script:hardcode": 0.0, "script:edit-tests": 0.0}
HARNESSES = ("bash-loop", "mini-swe-agent")


def cache_without_images(folder: Path) -> Path:
    """Return a cache that has what was fetched, but nothing that was prepared."""
    for name in ("packages", "sdists", "harness"):
        (cache_dir() / name).mkdir(parents=True, exist_ok=True)
        folder.mkdir(exist_ok=True)
        (folder / name).symlink_to(cache_dir() / name)
    return folder


@pytest.mark.timeout(900)
async def test_the_demo_runs_on_the_cluster_with_the_verdicts_that_it_has_here(
    cluster: Cluster, tmp_path: Path
) -> None:
    repository = f"{cluster.registry}/rollouts-{secrets.token_hex(4)}/commits"
    with deployed(cluster, tmp_path, settings={"commit_repository": repository}) as release:
        env = {**os.environ, "ORCHARD_HOME": str(tmp_path), "ORCHARD_API_KEY": release.api_key}
        env["ORCHARD_CACHE"] = str(cache_without_images(tmp_path / "cache"))
        where = ["--url", release.urls()[0], "--image", cluster.image("debian")]
        demo = await asyncio.create_subprocess_exec(
            *ORCHARD, "demo", *where, "--only", TASK, "--run", str(tmp_path / "run"), "--json", env=env,
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        output, errors = await demo.communicate()
        assert demo.returncode == 0, errors.decode()
        cells = json.loads(output)["cells"]
        rewards = {(cell["harness"], cell["policy"]): cell["reward"] for cell in cells}
        assert rewards == {(harness, policy): reward for harness in HARNESSES for policy, reward in REWARDS.items()}
        with read_run(tmp_path / "run") as run:
            records = [record for record in run.store.records() if isinstance(record, RolloutRecord)]
        assert {record.environment["image"] for record in records} == {records[0].environment["image_digest"]}
        assert cluster.get("-n", release.sandboxes, "pods", "-l", "orchard/sandbox")["items"] == []
