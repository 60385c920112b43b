"""``orchard gateway`` as a real process: pointed at by its one line, ended by a signal."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from tests.support.service import ORCHARD

STEPS = [{"bash": "ls"}, "I am done."]
ASK: dict[str, Any] = {"model": "any", "messages": [{"role": "user", "content": "Which files?"}]}


class Running:
    """A running ``orchard gateway``, and what it has printed so far."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        self.process, self.errors = process, ""
        self.lines = [process.stdout.readline()]
        words = dict(word.split("=", 1) for word in self.lines[0].split()[1:])
        self.url, self.key = words["ANTHROPIC_BASE_URL"], words["OPENAI_API_KEY"]
        assert words["OPENAI_BASE_URL"] == f"{self.url}/v1"

    def end(self, number: int = signal.SIGINT) -> int:
        self.process.send_signal(number)
        _, self.errors = self.process.communicate(timeout=30)
        return self.process.returncode


@contextmanager
def gateway(folder: Path, *argv: str, stderr: int = subprocess.PIPE) -> Iterator[Running]:
    script = folder / "steps.json"
    script.write_text(json.dumps(STEPS))
    words = [*ORCHARD, "gateway", "--record", str(folder / "store"), "--port", "0", *argv]
    words += [] if "--replay" in argv or "--engine" in argv else ["--script", str(script)]
    process = subprocess.Popen(
        words, stdout=subprocess.PIPE, stderr=stderr, text=True, stdin=subprocess.DEVNULL,
        env={**os.environ, "ORCHARD_HOME": str(folder / "home")},
    )  # fmt: skip
    try:
        yield Running(process)
    finally:
        process.kill()
        process.communicate()


def ask(url: str, key: str, body: dict[str, Any] = ASK) -> dict[str, Any]:
    """The message that a chat completion gives."""
    headers = {"Authorization": f"Bearer {key}", "Content-Type": "application/json"}
    with urlopen(Request(f"{url}/v1/chat/completions", json.dumps(body).encode(), headers), timeout=120) as answer:
        return json.load(answer)["choices"][0]["message"]
