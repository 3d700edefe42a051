"""An exporter for one program alone: a socket in a temporary folder, a free port of loopback, gone with its parent."""

from __future__ import annotations

import re
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from tachograph.processes.die_with_parent import dying_with_parent
from tachograph.processes.own_process import own_process
from tachograph.servers.server_address import UNIX, web_socket_path

START_SECONDS = 30.0
END_SECONDS = 5.0
_POLL_SECONDS = 0.02
_SERVING = re.compile(r"msg=serving address=(\S+)")


class NotServingError(Exception):
    """The exporter could not be started; the text is its own last line."""


class PrivateExporter:
    """Where a running exporter listens: `socket` for ranks, `own` for its owner's commands, `url` for all others."""

    def __init__(self, socket: Path, address: str) -> None:
        self.socket = socket
        self.url = f"http://{address}"
        own = web_socket_path(str(socket))
        self.own = f"{UNIX}{own}" if Path(own).exists() else self.url  # a path can be too long for a socket


@contextmanager
def private_exporter() -> Iterator[PrivateExporter]:
    """Run an exporter while the block does; raise NotServingError. It shows all of its few ranks."""
    with tempfile.TemporaryDirectory(prefix="tachograph-") as name:
        folder = Path(name)
        socket, log = folder / "rank.sock", folder / "log"
        flags = (f"--socket={socket}", "--web.listen-address=127.0.0.1:0", "--rank.series=all")
        with log.open("wb") as output:
            process = subprocess.Popen(
                dying_with_parent(own_process("tachograph.__main__", "exporter", *flags)),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # a Ctrl-C on the terminal is for the program alone
            )
        try:
            yield PrivateExporter(socket, _address(process, log))
        finally:
            process.terminate()
            with suppress(subprocess.TimeoutExpired):
                process.wait(END_SECONDS)
            process.kill()
            process.wait()


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    """Return where the exporter serves, once it does."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        ended = process.poll() is not None
        said = log.read_text(encoding="utf-8", errors="replace")
        if found := _SERVING.search(said):
            return found[1]
        if ended:
            raise NotServingError(said.strip().splitlines()[-1] if said.strip() else "the exporter ended at once")
        time.sleep(_POLL_SECONDS)
    raise NotServingError(f"the exporter did not start within {START_SECONDS:.0f} s")
