"""A network of its own on loopback, in which one pair of addresses talks through a proxy that delays every byte.

`python slow_network.py UNIX_SOCKET SECONDS COMMAND…`, as root: addresses 127.0.0.10 to .13 are those of the interfaces
lo:0 to lo:3. The command's status is returned.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import subprocess
import sys

CLONE_NEWNET = 0x40000000
CHUNK = 1 << 16


async def relay(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
    """Pass on what comes, each chunk `delay` seconds after it came, as a longer line would."""
    loop = asyncio.get_running_loop()
    queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

    async def send() -> None:
        while True:
            due, chunk = await queue.get()
            await asyncio.sleep(max(due - loop.time(), 0))
            if not chunk:
                break
            writer.write(chunk)
            await writer.drain()
        writer.close()

    sending = loop.create_task(send())
    try:
        while chunk := await reader.read(CHUNK):
            queue.put_nowait((loop.time() + delay, chunk))
    except OSError:
        pass
    queue.put_nowait((loop.time() + delay, b""))
    await asyncio.gather(sending, return_exceptions=True)


async def serve(place: str, delay: float, command: list[str]) -> int:
    """Answer requests for ports until the command ends."""

    async def ask(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        peer, port = (await reader.readline()).decode().split()

        async def accept(inner: asyncio.StreamReader, outer: asyncio.StreamWriter) -> None:
            theirs, ours = await asyncio.open_connection(peer, int(port))
            await asyncio.gather(relay(inner, ours, delay), relay(theirs, outer, delay))

        server = await asyncio.start_server(accept, "127.0.0.1", 0)
        writer.write(f"{server.sockets[0].getsockname()[1]}\n".encode())
        await writer.drain()
        writer.close()

    await asyncio.start_unix_server(ask, place)
    process = await asyncio.create_subprocess_exec(*command)
    return await process.wait()


def main() -> int:
    """Leave the machine's network, set up loopback, and run."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWNET):
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    for number in range(4):
        address = f"127.0.0.{10 + number}/8"
        subprocess.run(["ip", "address", "add", address, "dev", "lo", "label", f"lo:{number}"], check=True)
    return asyncio.run(serve(sys.argv[1], float(sys.argv[2]), sys.argv[3:]))


if __name__ == "__main__":
    sys.exit(main())
