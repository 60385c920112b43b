"""A brake before a server: a proxy that passes the server's bytes at a bounded rate, connection by connection.

python -m tests.kubernetes.cluster.brake LISTEN-ADDRESS:PORT SERVER-ADDRESS:PORT BYTES-A-SECOND
"""

import asyncio
import contextlib
import sys

_TICK = 0.05


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, speed: int | None) -> None:
    with contextlib.suppress(ConnectionError):
        while piece := await source.read(int(speed * _TICK) if speed else 65536):
            sink.write(piece)
            await sink.drain()
            if speed:
                await asyncio.sleep(len(piece) / speed)
    sink.close()


async def serve(listen: str, server: str, speed: int) -> None:
    """Pass connections to ``listen`` on to ``server``; what the server says comes at ``speed`` bytes a second."""
    host, port = server.rsplit(":", 1)

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            from_server, to_server = await asyncio.open_connection(host, int(port), limit=4096)
        except OSError:
            writer.close()
            return
        await asyncio.gather(_copy(reader, to_server, None), _copy(from_server, writer, speed))

    own_host, own_port = listen.rsplit(":", 1)
    async with await asyncio.start_server(handle, own_host, int(own_port)) as listening:
        await listening.serve_forever()


if __name__ == "__main__":
    asyncio.run(serve(sys.argv[1], sys.argv[2], int(sys.argv[3])))
