"""Prometheus and Alertmanager as shipped, on free ports of loopback: configuration and rules differ in addresses only.

Everything written stays in one folder.
"""

from __future__ import annotations

import json
import shutil
import socket
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TypeVar

from tachograph_lab import binaries
from tachograph_lab.checkout import root
from tachograph_lab.processes import Children, ProcessError, answers, free_port

M = TypeVar("M", bound="Monitoring")

START_SECONDS = 30.0
SHIPPED_PAGER = "http://localhost:9094"
"""Where the receivers of the shipped `alertmanager.yml` send; each has a path of its own there."""

MAX_SCRATCH_PATH = 60
"""The kernel allows 107 bytes for a unix socket, and PyTorch's loaders add up to 40 to the folder's path."""

SCRAPED_FILES = ("tachograph", "node", "dcgm")
"""Files of `prometheus/targets/` that name the nodes; empty until `aim` fills them."""


@dataclass(frozen=True)
class QuerySample:
    """One sample of an instant query: its labels and value."""

    labels: Mapping[str, str]
    value: float


class Monitoring:
    """The running pair, as a context manager. Alertmanager tells `pager_url`/<receiver> all it has to say.

    `node` is the name this machine goes by in alerts, `scratch` a folder with a short path that goes at the end. With
    `keep` the processes outlive a clean exit.
    Raises BinariesUnavailable and ProcessError.
    """

    parts: Sequence[str] = ("alertmanager", "prometheus")
    """What is started, in this order; each has a port in `ports`."""

    def __init__(self, folder: Path, pager_url: str, *, suite: str = binaries.SYSTEM, keep: bool = False) -> None:
        self.folder = folder
        self.node = socket.gethostname()
        self.children = Children(folder, keep=keep)
        self.ports = {part: free_port() for part in self.parts}
        self._pager_url = pager_url
        self._suite = suite

    def __enter__(self: M) -> M:
        programs = binaries.find(self._suite)
        self._versions = {part: binaries.version(programs[part]) for part in self.ports if part in programs}
        with ExitStack() as starting:
            self.scratch = self._scratch(starting)
            starting.enter_context(self.children)
            self._render()
            self._start_nodes()
            self._start(programs)
            self._running = starting.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._running.__exit__(kind, *error)  # type: ignore[arg-type]

    def address(self, part: str) -> str:
        """Return the host and port of a part."""
        return f"127.0.0.1:{self.ports[part]}"

    def url(self, part: str) -> str:
        """Return the base URL of a part."""
        return f"http://{self.address(part)}"

    def description(self) -> str:
        """Return which programs run, with their versions."""
        return ", ".join(f"{part} {'.'.join(map(str, number))}" for part, number in self._versions.items())

    def query(self, expression: str) -> list[QuerySample]:
        """Return the result of an instant query of Prometheus."""
        parameters = urllib.parse.urlencode({"query": expression})
        rows = json.loads(get(f"{self.url('prometheus')}/api/v1/query?{parameters}"))["data"]["result"]
        return [QuerySample(row["metric"], float(row["value"][1])) for row in rows]

    def aim(self, file: str, instances: Mapping[str, str]) -> None:
        """Have Prometheus scrape these for a file of `targets/`, instance -> address; within 10 s if it runs."""
        groups = [{"targets": [address], "labels": {"instance": name}} for name, address in instances.items()]
        path = self.folder / f"prometheus/targets/{file}.yml"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(groups), encoding="utf-8")
        fresh.replace(path)

    def _scratch(self, starting: ExitStack) -> Path:
        """Make the folder for sockets and all that the children would put under /tmp; it goes when they have gone."""
        folder = self.folder / "tmp"
        if len(str(folder)) > MAX_SCRATCH_PATH:
            folder = Path(tempfile.mkdtemp(prefix="tachograph-"))
        folder.mkdir(parents=True, exist_ok=True)
        self.children.environment["TMPDIR"] = str(folder)
        if not self.children.keep:
            starting.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_nodes(self) -> None:
        """Start what is scraped, where that is part of this."""

    def _arguments(self, part: str) -> list[str]:
        """Return a part's command line, without its address."""
        data = self._data(part)
        if part == "alertmanager":
            return [
                f"--config.file={self.folder / 'alertmanager/alertmanager.yml'}",
                f"--storage.path={data}",
                f"--web.external-url={self.url(part)}",
                "--cluster.listen-address=",
            ]
        return [
            f"--config.file={self.folder / 'prometheus/prometheus.yml'}",
            f"--storage.tsdb.path={data}",
            f"--web.external-url={self.url(part)}",
            "--web.cors.origin=.*",
            "--rules.alert.for-grace-period=15s",
        ]

    def _render(self) -> None:
        for part in ("prometheus", "alertmanager"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
            shutil.copytree(root() / part, self.folder / part)
            shutil.rmtree(self._data(part), ignore_errors=True)
        for file in SCRAPED_FILES:
            self.aim(file, {})
        for part in ("prometheus", "alertmanager"):
            self.aim(part, {self.node: self.address(part)})
        alertmanager = self.folder / "alertmanager/alertmanager.yml"
        text = alertmanager.read_text(encoding="utf-8")
        alertmanager.write_text(text.replace(SHIPPED_PAGER, self._pager_url), encoding="utf-8")

    def _data(self, part: str) -> Path:
        return self.folder / f"{part}-data"

    def _start(self, programs: Mapping[str, Path]) -> None:
        started = {child.name for child in self.children.running}
        for part in [part for part in self.parts if part not in started]:
            address = f"--web.listen-address={self.address(part)}"
            self.children.start(part, [programs[part], address, *self._arguments(part)])
        for child in [child for child in self.children.running if child.name in self.ports]:
            path = "/metrics" if child.name == "node_exporter" else "/-/ready"
            child.wait_until(partial(answers, self.url(child.name) + path), START_SECONDS)


def get(url: str) -> str:
    """Return what a GET of `url` answers; raise ProcessError if nothing does."""
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())
    except OSError as error:
        raise ProcessError(f"no answer from {url}: {error}") from error
