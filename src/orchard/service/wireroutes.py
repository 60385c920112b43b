"""The relayed routes as the OpenAPI document shows them; ``sandboxd/spec/wire.md`` says what each means."""

from __future__ import annotations

from typing import Any

_ROUTES = (
    ("get", "/health", "the daemon of the sandbox answers"),
    ("get", "/stats", "use of CPU, memory, processes and disk"),
    ("get", "/lease", "when the sandbox ends"),
    ("post", "/lease", "extend, or renew as its owner"),
    ("get", "/processes", "every process that is still known"),
    ("post", "/processes", "start a process; `stream=bounded|full` answers with its frames, live"),
    ("get", "/processes/{process_id}", "its status; `wait=SECONDS` answers when it has ended"),
    ("delete", "/processes/{process_id}", "kill its whole tree"),
    ("get", "/processes/{process_id}/stream", "its frames, from an offset on"),
    ("get", "/processes/{process_id}/output/{stream}", "all that was written to `stdout` or `stderr`; Range"),
    ("post", "/processes/{process_id}/stdin", "send to its stdin"),
    ("post", "/processes/{process_id}/signal", "send a signal"),
    ("post", "/processes/{process_id}/resize", "resize its terminal"),
    ("get", "/files", "a file's bytes; Range"),
    ("put", "/files", "write a file, atomically"),
    ("post", "/files/append", "append to a file"),
    ("get", "/files/stat", "one entry"),
    ("get", "/files/list", "the entries of a folder, as JSON lines"),
    ("post", "/files/mkdir", "make a folder"),
    ("post", "/files/move", "rename"),
    ("post", "/files/remove", "remove"),
    ("post", "/files/chmod", "set mode and owner"),
    ("post", "/files/symlink", "make a symbolic link"),
    ("get", "/files/watch", "changes, as JSON lines, live"),
    ("get", "/tree", "a tar of a tree"),
    ("put", "/tree", "unpack a tar"),
    ("post", "/tree/pick", "a tar of the named paths alone"),
    ("get", "/manifest", "path, type, mode, size and sha256 of a tree, as JSON lines"),
    ("get", "/ports/{port}", "WebSocket: a tunnel to a port in the sandbox; binary frames, an empty one is half-close"),
    ("get", "/reverse", "ports in the sandbox that lead out"),
    ("post", "/reverse/{port}", "listen on a port in the sandbox that leads out"),
    ("delete", "/reverse/{port}", "stop listening"),
    ("get", "/reverse/{port}/carry", "WebSocket: a carrier of one connection"),
    ("get", "/proxy/{port}/{path}", "any method, or WebSocket: the HTTP server on a port in the sandbox"),
)  # fmt: skip
_PROBLEM = {"$ref": "#/components/schemas/ProblemBody"}


def wire_paths() -> dict[str, Any]:
    """Return the ``paths`` of the relayed routes."""
    paths: dict[str, Any] = {}
    for method, path, summary in _ROUTES:
        names = ["sandbox_id", *(part[1:-1] for part in path.split("/") if part.startswith("{"))]
        operation: dict[str, Any] = {
            "tags": ["in a sandbox"], "summary": summary,
            "parameters": [{"name": name, "in": "path", "required": True, "schema": _schema(name)} for name in names],
            "responses": {
                "2XX": {"description": "as sandboxd answers"},
                "default": problem_response(),
            },
        }  # fmt: skip
        paths.setdefault("/v1/sandboxes/{sandbox_id}" + path, {})[method] = operation
    return paths


def _schema(name: str) -> dict[str, Any]:
    if name == "port":
        return {"type": "integer", "minimum": 0, "maximum": 65535}
    return {"type": "string"}


def problem_response() -> dict[str, Any]:
    """Return the OpenAPI response of every error."""
    return {"description": "an error", "content": {"application/problem+json": {"schema": _PROBLEM}}}
