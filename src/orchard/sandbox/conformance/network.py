"""Network: lines 50 to 54, and reverse tunnels."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from urllib.parse import urlsplit

from orchard.sandbox.box import Sandbox
from orchard.sandbox.conformance.pace import in_time
from orchard.sandbox.conformance.suite import Context, check, eventually, expect

TRY_OUT = """
import socket, time, sys
def tcp(family, address):
    s = socket.socket(family, socket.SOCK_STREAM); s.settimeout(2); s.connect(address); s.send(b"x")
def udp(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM); s.settimeout(2); s.sendto(b"x", address); s.recv(9)
def icmp():
    s = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    s.settimeout(2); s.sendto(b"\\x08\\0\\xf7\\xff\\0\\0\\0\\0", (TARGET, 0)); s.recv(99)
TARGET, PORT = sys.argv[1], int(sys.argv[2])
tries = {
    "tcp": lambda: tcp(socket.AF_INET, (TARGET, PORT)),
    "tcp6": lambda: tcp(socket.AF_INET6, ("fd00::1", PORT)),
    "mapped": lambda: tcp(socket.AF_INET6, ("::ffff:" + TARGET, PORT)),
    "udp": lambda: udp(socket.AF_INET, (TARGET, PORT)),
    "udp6": lambda: udp(socket.AF_INET6, ("fd00::1", PORT)),
    "metadata": lambda: tcp(socket.AF_INET, ("169.254.169.254", 80)),
    "icmp": icmp,
}
for name, attempt in tries.items():
    try:
        attempt()
        print("OUT", name)
    except OSError:
        pass
start = time.monotonic()
try:
    socket.getaddrinfo("example.com", 80)
    print("OUT dns")
except OSError:
    pass
print("lookup", time.monotonic() - start)
"""


class _Echo(asyncio.DatagramProtocol):
    def connection_made(self, transport: asyncio.DatagramTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        self._transport.sendto(data, addr)


@asynccontextmanager
async def _answering() -> AsyncGenerator[int]:
    """A port of this machine that answers by TCP and UDP: what is sent may be dropped on its way, an answer was not."""
    server = await asyncio.start_server(lambda _, writer: writer.close(), "0.0.0.0", 0)
    port = server.sockets[0].getsockname()[1]
    echo, _ = await asyncio.get_running_loop().create_datagram_endpoint(_Echo, local_addr=("0.0.0.0", port))
    async with server:
        try:
            yield port
        finally:
            echo.close()


@check(50, "deny-all: nothing leaves, and a look-up fails in under a second", tools=("python3",))
async def _deny_all(ctx: Context) -> None:
    async with ctx.box(network="none") as box, _answering() as port:

        async def once() -> tuple[float, float]:
            result = await box.run(["python3", "-c", TRY_OUT, ctx.host_address(), str(port)], timeout=40, user="0")
            left = [line for line in result.text.splitlines() if line.startswith("OUT")]
            expect(result.ok and not left, f"left the sandbox: {left} {result.error_text[-300:]}")
            return float(result.text.split("lookup")[1]), await ctx.timed(box.run("true"))

        await in_time(once, 1.0, 5.0, "a failing look-up")


@check(50, "deny-all has a loopback of its own", tools=("python3",))
async def _own_loopback(ctx: Context) -> None:
    async with ctx.box() as first, ctx.box() as second:
        await first.start(["python3", "-m", "http.server", "8123", "--bind", "127.0.0.1"])
        fetch = [
            "python3",
            "-c",
            "import urllib.request as u; print(u.urlopen('http://127.0.0.1:8123/', timeout=10).status)",
        ]
        await eventually(lambda: _succeeds(first, fetch), 30, "not reached inside")
        expect(not (await second.run(fetch)).ok, "another sandbox reaches it")


async def _succeeds(box: Sandbox, command: list[str]) -> bool:
    return (await box.run(command)).ok


_LISTEN = (
    "import socket; s = socket.create_server(('', 8125)); "
    "u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); u.connect(('192.0.2.1', 9)); "
    "print(u.getsockname()[0], flush=True)\nwhile True: s.accept()"
)
_CONNECT = "import socket, sys; socket.create_connection((sys.argv[1], int(sys.argv[2])), 3)"


@check(
    52, "open egress reaches neither metadata, API nor other sandboxes", feature="network=open", tools=("python3",)
)  # fmt: skip
async def _open_egress(ctx: Context) -> None:
    async with ctx.box(network="open") as box, ctx.box(network="open") as other:
        server = await other.start(["python3", "-c", _LISTEN])
        address = (await anext(aiter(server))).data.decode().strip()
        own = await other.run(["python3", "-c", _CONNECT, address, "8125"])
        expect(own.ok, f"the other sandbox does not reach its own server: {own.error_text}")
        targets = [("another sandbox", address, 8125), ("metadata", "169.254.169.254", 80)]
        targets += [("the cluster's API", f"kubernetes.default.svc{zone}", 443) for zone in ("", ".cluster.local")]
        if ctx.service_url is not None:
            service = urlsplit(ctx.service_url)
            targets.append(("the service", str(service.hostname), service.port or 80))
        reached: list[str] = []

        async def none_reached() -> bool:  # only ``none`` is shut from the first moment
            tries = (box.run(["python3", "-c", _CONNECT, host, str(port)], timeout=90) for _, host, port in targets)
            results = zip(targets, await asyncio.gather(*tries), strict=True)
            reached[:] = [f"{target} is reached: {result}" for target, result in results if result.exit_code != 1]
            return not reached

        await eventually(none_reached, 15, reached)


@check(54, "a port inside is reached through a tunnel, both ways and half-closed", tools=("python3",))
async def _tunnel(ctx: Context) -> None:
    server = (
        "import socketserver\n"
        "class H(socketserver.StreamRequestHandler):\n"
        "    def handle(self): data = self.rfile.read(); self.wfile.write(data[::-1])\n"
        "socketserver.TCPServer(('127.0.0.1', 8124), H).serve_forever()"
    )
    payload = bytes(range(256)) * 4000
    async with ctx.box() as box:
        await box.start(["python3", "-c", server])
        tunnel = await box.tunnel(8124, wait=30)
        await tunnel.write(payload)
        await tunnel.write_eof()
        back = b""
        while chunk := await tunnel.read():
            back += chunk
        await tunnel.close()
        expect(back == payload[::-1], f"{len(back)} bytes came back of {len(payload)}")


@check(50, "a reverse tunnel leads out of a sandbox without network, and only to its target", tools=("python3",))
async def _reverse(ctx: Context) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        data = await reader.read()
        writer.write(b"target:" + data)
        writer.write_eof()
        await writer.drain()
        writer.close()

    client = (
        "import socket; s = socket.create_connection(('127.0.0.1', 8126), 25); s.sendall(b'x' * 100000); "
        "s.shutdown(1); d = b''\nwhile (c := s.recv(65536)): d += c\nprint(d[:7].decode(), len(d))"
    )
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    async with server, ctx.box() as box:
        async with box.reverse(8126, f"tcp:127.0.0.1:{port}"):
            results = await asyncio.gather(*(box.run(["python3", "-c", client], timeout=90) for _ in range(8)))
            wrong = [result for result in results if result.text.split() != ["target:", "100007"]]
            expect(not wrong, f"{len(wrong)} of 8 at once: {wrong[:1]} {wrong and wrong[0].error_text[-300:]}")
        after = await box.run(["python3", "-c", client], timeout=20)
        expect(not after.ok and not after.timed_out, f"the tunnel outlives its block: {after}")
