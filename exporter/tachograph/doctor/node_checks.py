"""The node's side: the socket of the ranks, and the exporter behind it."""

from __future__ import annotations

import os
import pwd
import re
import socket
import stat
import struct
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from tachograph import wire
from tachograph._version import __version__
from tachograph.catalog import index as catalog
from tachograph.client.transport.exporter_socket import why_unreachable
from tachograph.doctor.check_result import CheckResult, fail, ok, unknown
from tachograph.servers.http_client import without_password
from tachograph.servers.server_address import UNIX, exporter_url
from tachograph.text.humanize import listed, plural
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.node_source import default_exporter, exporter_page
from tachograph.top.overview import SourceError

CONNECT_SECONDS = 2.0


def checks(exporter: str | None, *, elsewhere: bool) -> Iterator[CheckResult]:
    """Yield the results of this node; with `elsewhere` a machine that is no node is not at fault."""
    path = wire.socket_path()
    try:
        address = exporter_url(exporter or default_exporter())
        page = exporter_page(address)
    except (SourceError, ValueError) as error:
        if elsewhere and not Path(path).parent.exists():
            yield unknown(
                "node: this machine has neither an exporter nor its folder", "run tachograph doctor on a node"
            )
            return
        if exporter is None or is_here(exporter):
            yield from _socket(path)
        yield fail(str(error))
        return
    yield from _socket_of(address, path)
    yield from _exporter(page, without_password(address).removesuffix("/metrics"))


def _socket_of(address: str, path: str) -> Iterator[CheckResult]:
    """Yield the results of the socket of the exporter at a URL, which only its own node can check."""
    if is_here(address):
        yield from _socket(path)
    else:
        host, here = urlsplit(address).hostname, socket.gethostname()
        yield unknown(f"socket: it is on {host}, and this machine is {here}", "run tachograph doctor there")


def is_here(address: str) -> bool:
    """Return whether the host of an address is this machine; False for one whose name nobody knows."""
    if address.startswith(UNIX):
        return True
    host = urlsplit(address if "://" in address else f"http://{address}").hostname or ""
    try:
        found = socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    return any(_is_own(family, place) for family, *_, place in found)


def _is_own(family: int, place: tuple[object, ...]) -> bool:
    """Return whether an address is one of this machine's: only those can be bound."""
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        try:
            probe.bind(place)
        except OSError:
            return False
    return True


def _socket(path: str) -> Iterator[CheckResult]:
    try:
        status = os.stat(path)  # noqa: PTH116 - `path` is text, as the client has it
        if not stat.S_ISSOCK(status.st_mode):
            yield fail(f"{path} is not a socket", "remove it and restart the exporter")
            return
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
            probe.settimeout(CONNECT_SECONDS)
            probe.connect(path)
            peer = probe.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    except OSError as error:
        yield fail(why_unreachable(path, error))
        return
    rights = f"owner {_user(status.st_uid)}, mode {stat.S_IMODE(status.st_mode):04o}"
    yield ok(f"socket {path}: {rights}; uid {os.geteuid()} can connect")
    yield _pid_namespace(struct.unpack("3i", peer)[0])


def _user(uid: int) -> str:
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


def _pid_namespace(pid: int) -> CheckResult:
    """Return whether the exporter sees the processes of this namespace, by which it finds their GPUs."""
    if not pid:
        return unknown(
            "pid namespace: the exporter's is not visible from here, as in a container", "run this on the host"
        )
    try:
        (inside,) = re.findall(r"^NSpid:(.*)$", Path(f"/proc/{pid}/status").read_text(encoding="utf-8"), re.MULTILINE)
    except (OSError, ValueError) as error:
        return unknown(f"pid namespace: process {pid} of the exporter cannot be read ({error})", "run this as root")
    if len(inside.split()) > 1:
        what = "pid namespace: the exporter has one of its own, so a rank's GPU is what the rank reports"
        return unknown(what, "hostPID: true or --pid host finds it by its process (docs/gpus.md)")
    return ok("pid namespace: the exporter sees the processes of this one")


def _exporter(page: ExporterPage, url: str) -> Iterator[CheckResult]:
    (info,) = page.of(catalog.EXPORTER_INFO)
    version = info.labels["version"]
    if _numbers(version) < _numbers(__version__):
        yield fail(
            f"exporter {version} at {url} is older than the client, {__version__}",
            f"install {__version__} for the exporter and restart it: what newer clients send it may drop",
        )
    else:
        yield ok(f"exporter {version} answers at {url}; the client here is {__version__}")
    yield _gpus(page)
    ranks = Counter(sample.labels["run"] for sample in page.of(catalog.RANK_UP) if sample.value == 1)
    if ranks:
        yield ok("ranks: " + listed([f"{count} of run {run}" for run, count in sorted(ranks.items())]))
    else:
        yield unknown("ranks: none is connected", "start a training script on this node, then run this again")


def _numbers(version: str) -> list[int]:
    return [int(number) for number in re.findall(r"\d+", version)]


def _gpus(page: ExporterPage) -> CheckResult:
    reasons = [
        sample.labels["reason"]
        for sample in page.of(catalog.COLLECTOR_UNAVAILABLE)
        if sample.labels["collector"] == "gpu" and sample.value == 1
    ]
    if reasons:
        return fail(
            f"NVML: {listed(reasons).replace('_', ' ')}",
            "compare with nvidia-smi and the exporter's log; a node without GPUs starts it with --no-gpu",
        )
    if not any(sample.labels["collector"] == "gpu" for sample in page.of(catalog.COLLECTOR_SUCCESS)):
        return unknown("NVML: the exporter does not read GPUs", "it was started with --no-gpu")
    if lost := [
        f"GPU {sample.labels['gpu']}: {sample.labels['reason']}" for sample in page.of(catalog.GPU_UNAVAILABLE)
    ]:
        return fail(f"NVML: {listed(lost)}", "nvidia-smi, and runbooks/GpuLost.md")
    return ok(f"NVML: {plural(len(page.of(catalog.GPU_INFO)), 'GPU')} read")
