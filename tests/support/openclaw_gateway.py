"""OpenClaw with its own gateway beside it in the sandbox, without which it starts no sub-agents."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import PurePosixPath

from tests.support.scenes import BOTH

from orchard.harness.inside import Launch, Left, Reading
from orchard.harness.native import merged
from orchard.harness.openclaw import OpenClaw
from orchard.harness.protocol import HarnessRequest

_SCRIPT = """\
$0 gateway run --allow-unconfigured > gateway.log 2>&1 & gateway=$!
until grep -q "gateway. ready" gateway.log; do sleep 0.2; done
$0 agent --agent main --message "$(cat)" --json
until grep -q "{both}" gateway.log; do sleep 1; done
kill $gateway
"""
"""The turn ends when the parent yields; another one follows when its sub-agents have ended."""


class WithGateway(OpenClaw):
    def launch(self, request: HarnessRequest, home: str) -> Launch:
        launch = super().launch(request, home)
        settings = merged(
            json.loads(launch.files["openclaw.json"]),
            {
                "gateway": {"mode": "local", "bind": "loopback", "auth": {"mode": "none"}},
                "agents": {"defaults": {"workspace": request.workdir}},
                "tools": {"profile": "coding", "exec": {"security": "full", "ask": "off"}},
            },
        )
        log = str(PurePosixPath(home) / "gateway.log")
        script = _SCRIPT.format(both=BOTH).replace("gateway.log", log)
        argv = ["sh", "-c", script, launch.argv[0]]
        return replace(launch, argv=argv, files={**launch.files, "openclaw.json": json.dumps(settings)})

    def read(self, left: Left) -> Reading:
        return replace(super().read(left), done=not left.result.timed_out)
