"""Logs that are asked for: systemd's journal by journalctl, and Loki by its HTTP API."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import cast
from urllib.parse import urlencode

from tachograph.files.unreadable import UNREADABLE
from tachograph.logs.loki_streams import entries
from tachograph.logs.sources import ReadsPieces, whole_lines
from tachograph.servers.http_client import HttpError, ask, without_password

LOKI_PAGE = 5_000
"""Lines of one response; the limit of a Loki that is not configured otherwise."""
_TIMEOUT = 30.0


class RemoteError(Exception):
    """The logs cannot be had; the text says in one line why."""


def journal(unit: str, since: float, until: float) -> Iterator[bytes]:
    """Yield the journal of this machine as lines of JSON, in blocks; `unit` "" is all of it. Raises RemoteError."""
    command = ["journalctl", "--output=json", "--no-pager", "--quiet", f"--since=@{since:.0f}", f"--until=@{until:.0f}"]
    command += [f"--unit={unit}"] if unit else []
    try:
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL) as run:
            assert run.stdout is not None
            assert run.stderr is not None
            yield from whole_lines(cast("ReadsPieces", run.stdout))
            said = run.stderr.read(4096).decode(errors="replace").strip()
            if run.wait():
                raise RemoteError(f"journalctl: {said.splitlines()[-1] if said else f'exit status {run.returncode}'}")
    except OSError as error:
        raise RemoteError(f"journalctl: {error.strerror or error}") from error


def loki(url: str, query: str, since: float, until: float) -> Iterator[bytes]:
    """Yield the lines of a LogQL query between two Unix times, oldest first, in blocks. Raises RemoteError.

    Each line is put as an object with `msg`, `time`, and the labels that name its node and rank.
    """
    start, end = int(since * 1e9), int(until * 1e9)
    address = without_password(url.rstrip("/"))
    while start < end:
        given = urlencode({"query": query, "start": start, "end": end, "limit": LOKI_PAGE, "direction": "forward"})
        try:
            answer = ask(f"{url.rstrip('/')}/loki/api/v1/query_range?{given}", _TIMEOUT)
            if answer.status != 200:
                said = " ".join(answer.body[:200].decode(errors="replace").split())
                raise RemoteError(f"Loki at {address}: {answer.status} {answer.reason}: {said}")
            found = sorted(entries(json.loads(answer.body)["data"]["result"]))
        except HttpError as error:
            raise RemoteError(f"Loki at {address}: {error}") from error
        except UNREADABLE as error:
            raise RemoteError(f"Loki at {address}: an answer of another form: {error!r:.200}") from error
        if not found:
            return
        yield "".join(line for _, line in found).encode()
        if len(found) < LOKI_PAGE:
            return
        start = max(found[-1][0], start + 1)  # lines of the same nanosecond may come twice, and none is left out
