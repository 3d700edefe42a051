"""The boxes of a run on other nodes, fetched from their exporters: only while a person waits, and only so long.

This runs in the analyst's process. Users and passwords are those of `~/.netrc`, or of $NETRC; certificates are checked
against the authorities of the system.
"""

from __future__ import annotations

import base64
import http.client
import json
import netrc
import os
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from urllib.parse import quote, urlsplit

import yaml

from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox, ServedRun
from tachograph.files.unreadable import UNREADABLE
from tachograph.text.printable import printable

AT_A_TIME = 32
MOST_PEERS = 4096
REQUEST_SECONDS = 5.0
LARGEST_ANSWER = 64 << 20
"""Of Prometheus, which lists all its targets: some 2 KB for each."""

LATE = "it did not answer in time"


class PeerError(Exception):
    """A request failed; the text says why in a few words."""


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    def redirect_request(self, *_: object) -> None:
        return None


_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())


def fetched(url: str, deadline: float, most: int) -> bytes:
    """Return the body at a URL; raise PeerError. `deadline` is by the monotonic clock, `most` bytes."""
    left = min(REQUEST_SECONDS, deadline - time.monotonic())
    if left <= 0:
        raise PeerError("no time was left to ask it")
    end = time.monotonic() + left
    parts: list[bytes] = []
    try:
        with _opener.open(urllib.request.Request(url, headers=_login(url)), timeout=left) as response:
            while chunk := response.read1(1 << 16):
                parts.append(chunk)
                most -= len(chunk)
                if most < 0:
                    raise PeerError("its answer is too large")
                if time.monotonic() > end:
                    raise PeerError(f"its answer was not complete after {left:.0f} s")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == http.client.NOT_FOUND:
            raise NotThereError("it knows no such run") from error
        raise PeerError(f"it answers {error.code}") from error
    except urllib.error.URLError as error:
        reason = error.reason
        raise PeerError(_why(reason) if isinstance(reason, OSError) else printable(str(reason))[:100]) from error
    except (http.client.HTTPException, OSError, ValueError) as error:
        raise PeerError(_why(error)) from error
    return b"".join(parts)


class NotThereError(PeerError):
    """The exporter is there, and has nothing of this run."""


def _why(error: BaseException) -> str:
    if isinstance(error, TimeoutError):
        return LATE
    return printable(getattr(error, "strerror", None) or str(error) or type(error).__name__)[:100]


def _login(url: str) -> dict[str, str]:
    """Return the header with the user and password that a netrc file has for a host, nothing without one."""
    try:
        path = Path(os.environ["NETRC"]) if "NETRC" in os.environ else Path.home() / ".netrc"
        found = netrc.netrc(str(path)).authenticators(urlsplit(url).hostname or "")
    except (OSError, RuntimeError, netrc.NetrcParseError):
        return {}
    if found is None:
        return {}
    return {"Authorization": "Basic " + base64.b64encode(f"{found[0]}:{found[2] or ''}".encode()).decode()}


def addresses(peers: str, run: str, deadline: float) -> list[str]:
    """Return the exporters that `peers` names: all in a targets file, or those of a run by a Prometheus' URL.

    Raise PeerError.
    """
    try:
        if peers.startswith(("http://", "https://")):
            return _of_prometheus(peers.rstrip("/"), run, deadline)[:MOST_PEERS]
        return served.listed_exporters(yaml.safe_load(Path(peers).read_text(encoding="utf-8")))[:MOST_PEERS]
    except OSError as error:
        raise PeerError(f"{peers}: {error.strerror or type(error).__name__}") from error
    except (*UNREADABLE, yaml.YAMLError) as error:
        raise PeerError(f"{served.shown(peers)}: cannot be read: {printable(str(error))[:100]}") from error


def _of_prometheus(url: str, run: str, deadline: float) -> list[str]:
    try:
        query = quote(served.exporters_query(run))
        found = json.loads(fetched(f"{url}/api/v1/query?query={query}", deadline, LARGEST_ANSWER))
        targets = json.loads(fetched(f"{url}/api/v1/targets?state=active", deadline, LARGEST_ANSWER))
    except PeerError as error:
        raise PeerError(f"Prometheus at {served.shown(url)}: {error}") from error
    bases, _ = served.exporters_of(
        [one["metric"] for one in found["data"]["result"]],
        [(one["labels"], one["scrapeUrl"]) for one in targets["data"]["activeTargets"]],
    )
    return bases


@dataclass
class PeerAnswers:
    """The answers of peers about a run, and which did not answer, with the reason, by the address."""

    runs: dict[str, ServedRun] = field(default_factory=dict)
    silent: dict[str, str] = field(default_factory=dict)


def indexes(peers: list[str], run: str, deadline: float) -> PeerAnswers:
    """Return what the exporters at these addresses have of a run."""
    result = PeerAnswers()
    pool = ThreadPoolExecutor(AT_A_TIME)
    asked = {pool.submit(_index, peer, run, deadline): peer for peer in peers}
    done = wait(asked, max(0.0, deadline - time.monotonic())).done
    pool.shutdown(wait=False, cancel_futures=True)
    for future, peer in asked.items():
        try:
            if future not in done:
                raise PeerError(LATE)
            result.runs[peer] = future.result()
        except NotThereError:
            pass
        except PeerError as error:
            result.silent[served.shown(peer)] = str(error)
    return result


def _index(peer: str, run: str, deadline: float) -> ServedRun:
    body = fetched(peer + served.index_path(run), deadline, served.LARGEST_INDEX)
    try:
        return served.read_run(body)
    except UNREADABLE as error:
        raise PeerError(f"no index: {printable(str(error))[:100]}") from error


def boxes(
    wanted: list[tuple[str, ServedBox]], run: str, deadline: float, failed: dict[int, str]
) -> Iterator[tuple[ServedBox, bytes]]:
    """Yield these boxes as they come, at most AT_A_TIME in memory; `failed` gets why a rank's did not."""
    todo = iter(wanted)
    running: dict[Future[bytes], ServedBox] = {}
    pool = ThreadPoolExecutor(AT_A_TIME)
    try:
        while True:
            for address, box in islice(todo, AT_A_TIME - len(running)):
                url = address + served.box_path(run, box.attempt, box.rank, asked=box.asked)
                running[pool.submit(fetched, url, deadline, served.LARGEST_BOX)] = box
            done = wait(running, max(0.0, deadline - time.monotonic()), FIRST_COMPLETED).done
            for future in done:
                box = running.pop(future)
                try:
                    yield box, future.result()
                except PeerError as error:
                    failed[box.rank] = str(error)
            if not done:  # all have come, or no time is left
                failed.update((box.rank, LATE) for box in (*running.values(), *(box for _, box in todo)))
                return
    finally:
        pool.shutdown(wait=False, cancel_futures=True)


def of_interest(runs: Mapping[str, ServedRun], own: ServedRun) -> list[tuple[str, ServedBox]]:
    """Return the boxes that are not here: of the newest attempt that anybody has, and newer than one that is."""
    everywhere = {"": own, **runs}
    return [(address, box) for address, box in served.current(everywhere) if address]
