"""OpenHands' editor on a copy of what it is asked for, below a folder that stands for the sandbox's root."""
# pyright: reportMissingImports=false, reportMissingModuleSource=false

import posixpath
import shutil
import tempfile
import threading
from base64 import b64decode, b64encode
from pathlib import Path
from typing import Any

from openhands.tools.file_editor.definition import FileEditorAction, FileEditorObservation
from openhands.tools.file_editor.impl import FileEditorExecutor


class SandboxEditor(FileEditorExecutor):
    """As its base, but the copy is made before each call, written back after it, and never lasts."""

    def __init__(self, bridge: Any, workdir: str) -> None:
        self._shadow = Path(tempfile.mkdtemp(prefix="root-"))
        super().__init__(workspace_root=f"{self._shadow}{workdir}")
        self._bridge, self._workdir, self._turn = bridge, workdir, threading.Lock()

    def __call__(self, action: FileEditorAction, conversation: Any = None) -> FileEditorObservation:
        """Do one command of the editor."""
        with self._turn:
            return self._do(action, conversation)

    def _do(self, action: FileEditorAction, conversation: Any) -> FileEditorObservation:
        path = posixpath.normpath(posixpath.join("/", self._workdir, action.path)).lstrip("/")
        copy = self._shadow / path
        seen = self._bridge.ask(do="look", path=f"/{path}")
        if "why" in seen:
            return _refused(action, seen["why"])
        shutil.rmtree(self._shadow, ignore_errors=True)
        try:
            old = _place(copy, seen)
            moved = {"path": str(copy)} if action.path.startswith("/") else {}
            observation = super().__call__(action.model_copy(update=moved), conversation)
            new = copy.read_bytes() if copy.is_file() else None
        except (OSError, ValueError) as error:  # a name that this machine cannot hold
            return _refused(action, self._named(str(error)))
        if new is not None and new != old:
            done = self._bridge.ask(do="write", path=f"/{path}", data=b64encode(new).decode())
            if "why" in done:
                return _refused(action, done["why"])
        parts = [
            part.model_copy(update={"text": self._named(part.text)}) if part.type == "text" else part
            for part in observation.content
        ]
        shown = observation.path and self._named(observation.path)
        return observation.model_copy(update={"content": parts, "path": shown})

    def _named(self, text: str) -> str:
        """Return ``text`` with the sandbox's paths in place of the copy's."""
        return text.replace(str(self._shadow), "")


def _refused(action: FileEditorAction, why: str) -> FileEditorObservation:
    return FileEditorObservation.from_text(text=why, command=action.command, is_error=True)


def _place(copy: Path, seen: dict[str, Any]) -> bytes | None:
    """Make a copy of what was seen; return the content of a file."""
    kind = seen["kind"]
    if seen.get("parent", True):
        copy.parent.mkdir(parents=True, exist_ok=True)
    if kind == "file":
        data = b64decode(seen["data"])
        copy.write_bytes(data)
        return data
    if kind == "folder":
        copy.mkdir(exist_ok=True)
        for name, is_folder in seen["entries"]:
            (copy / name).mkdir() if is_folder else (copy / name).touch()
    return None
