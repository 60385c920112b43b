"""A URL that leads to no Orchard service."""

import http.server
import threading
from collections.abc import Iterator
from typing import Any, ClassVar

import pytest

from orchard.core.errors import OrchardError
from orchard.sandbox import Orchard


class Stranger(http.server.BaseHTTPRequestHandler):
    """Some other program's server: a page for everything, or an error in a form of its own."""

    answers: ClassVar[dict[str, tuple[int, bytes]]] = {
        "page": (200, b"<html>hello</html>"), "missing": (404, b"<html>404</html>"),
        "json": (404, b'{"detail": "Not Found"}'), "method": (501, b"Unsupported method"),
    }  # fmt: skip

    def _answer(self) -> None:
        status, body = self.answers[self.path.split("/")[1]]
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    do_GET = do_POST = _answer  # noqa: N815

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""


@pytest.fixture(scope="module")
def stranger() -> Iterator[str]:
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Stranger) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("kind", sorted(Stranger.answers))
async def test_a_url_of_some_other_server_is_told_as_such(stranger: str, kind: str) -> None:
    async with Orchard(f"{stranger}/{kind}") as orchard:
        for ask in (orchard.list, lambda: orchard.create("debian")):
            with pytest.raises(OrchardError) as caught:
                await ask()
            assert "orchard serve" in (caught.value.hint or "")
