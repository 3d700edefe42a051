"""Prometheus and Alertmanager with the shipped configuration and rules, on free ports of loopback.

Only addresses differ from what is shipped. Everything is written to one folder.
"""

from __future__ import annotations

import json
import re
import shutil
import socket
import tempfile
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import TypeVar

from tachograph.servers.http_client import HttpError, ask
from tachograph.servers.prometheus_api import Prometheus, PrometheusError, TimeSeries
from tachograph_lab import binaries
from tachograph_lab.checkout import root
from tachograph_lab.processes import Children, ProcessError, answers, free_port

M = TypeVar("M", bound="Monitoring")

START_SECONDS = 30.0
SHIPPED_PAGER = "http://localhost:5001"
"""The address to which the receivers of the shipped `alertmanager.yml` send, each with a path of its own."""

MAX_SCRATCH_PATH = 60
"""The kernel allows 107 bytes for a Unix socket's path, and PyTorch's loaders add up to 40 to the folder's."""

SCRAPED_FILES = ("tachograph", "node", "dcgm")
"""The files of `prometheus/targets/` that list the nodes; empty until `aim` fills them."""


class Monitoring:
    """The running pair, as a context manager; Alertmanager sends every notification to `pager_url`/RECEIVER.

    `node` is this machine's name in alerts, `scratch` a folder with a short path that is removed at the end. With
    `keep` the processes outlive a clean exit. `intervals` are seconds of `scrape` and `evaluation` instead of those
    shipped. Raises BinariesUnavailable and ProcessError.
    """

    parts: Sequence[str] = ("alertmanager", "prometheus")
    """The programs to start, in this order; each has a port in `ports`."""
    store: str = "prometheus"
    """The program that has the samples and answers queries."""
    ruler: str = "prometheus"
    """The program that evaluates the rules; the job `prometheus` scrapes it."""

    def __init__(
        self, folder: Path, pager_url: str, *, suite: str = binaries.SYSTEM, keep: bool = False,
        intervals: Mapping[str, float] | None = None,
    ) -> None:  # fmt: skip
        self.folder = folder
        self._intervals = intervals or {}
        self.node = socket.gethostname()
        self.children = Children(folder, keep=keep)
        self.ports = {part: free_port() for part in self.parts}
        self._pager_url = pager_url
        self._suite = suite

    def __enter__(self: M) -> M:
        programs = self._programs()
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
        """Return host and port of a program."""
        return f"127.0.0.1:{self.ports[part]}"

    def url(self, part: str) -> str:
        """Return the base URL of a program."""
        return f"http://{self.address(part)}"

    def description(self) -> str:
        """Return the running programs with their versions."""
        return ", ".join(f"{part} {'.'.join(map(str, number))}" for part, number in self._versions.items())

    def query(self, expression: str) -> list[TimeSeries]:
        """Return the result of an instant query of Prometheus; raise ProcessError."""
        try:
            return Prometheus(self.url(self.store)).instant(expression)
        except PrometheusError as error:
            raise ProcessError(str(error)) from error

    def aim(self, file: str, instances: Mapping[str, str]) -> None:
        """Write the targets of a file in `targets/`, instance -> address; Prometheus reads it within 10 s."""
        self._write_targets(file, [(address, {"instance": name}) for name, address in instances.items()])

    def aim_engines(self, engines: Mapping[str, str]) -> None:
        """Do the same with the engines that runs generate with on this machine, run -> address."""
        labels = {"instance": self.node}
        self._write_targets("engines", [(address, {**labels, "run": run}) for run, address in engines.items()])

    def _write_targets(
        self, file: str, targets: Sequence[tuple[str, Mapping[str, str]]], of: str = "prometheus"
    ) -> None:
        groups = [{"targets": [address], "labels": labels} for address, labels in targets]
        path = self.folder / of / f"targets/{file}.yml"
        fresh = path.with_suffix(".new")
        fresh.write_text(json.dumps(groups), encoding="utf-8")
        fresh.replace(path)

    def start_anew(self, part: str) -> None:
        """Stop a program and start it again without its data."""
        self.children.end(part)
        shutil.rmtree(self._data(part), ignore_errors=True)
        self.start_again()

    def start_again(self) -> None:
        """Start what has been stopped, with its data."""
        self._start(self._programs())

    def _programs(self) -> dict[str, Path]:
        """Return the path of every program; raises BinariesUnavailable."""
        return binaries.find(self._suite)

    def _scratch(self, starting: ExitStack) -> Path:
        """Make the folder for sockets and the children's temporary files; it is removed after they have ended."""
        folder = self.folder / "tmp"
        if len(str(folder)) > MAX_SCRATCH_PATH:
            folder = Path(tempfile.mkdtemp(prefix="tachograph-"))
        folder.mkdir(parents=True, exist_ok=True)
        self.children.environment["TMPDIR"] = str(folder)
        if not self.children.keep:
            starting.callback(shutil.rmtree, folder, ignore_errors=True)
        return folder

    def _start_nodes(self) -> None:
        """Start the nodes to scrape, if this class has any."""

    def _within(self, part: str) -> Sequence[str]:
        """Return the command by which another one is started where a program belongs, empty for here."""
        return ()

    def _address_flag(self, part: str) -> str:
        """Return the flag that takes a program's address."""
        return "--web.listen-address"

    def _arguments(self, part: str) -> list[str]:
        """Return a program's command line, without its address."""
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
            shutil.copytree(self._source() / part, self.folder / part)
            shutil.rmtree(self._data(part), ignore_errors=True)
        for file in SCRAPED_FILES:
            self.aim(file, {})
        configuration = self.folder / "prometheus/prometheus.yml"
        text = configuration.read_text(encoding="utf-8")
        configuration.write_text(with_intervals(text, self._intervals), encoding="utf-8")
        self.aim("prometheus", {self.node: self.address(self.ruler)})
        self.aim("alertmanager", {self.node: self.address("alertmanager")})
        self._name_pager()

    def _source(self) -> Path:
        """Return the checkout whose configuration runs."""
        return root()

    def _name_pager(self) -> None:
        """Have the receivers of `alertmanager.yml` send to the pager."""
        alertmanager = self.folder / "alertmanager/alertmanager.yml"
        text = alertmanager.read_text(encoding="utf-8")
        alertmanager.write_text(text.replace(SHIPPED_PAGER, self._pager_url), encoding="utf-8")

    def _data(self, part: str) -> Path:
        return self.folder / f"{part}-data"

    def _start(self, programs: Mapping[str, Path]) -> None:
        started = {child.name for child in self.children.running}
        for part in [part for part in self.parts if part not in started]:
            listening = f"{self._address_flag(part)}={self.address(part)}"
            self.children.start(part, [*self._within(part), programs[part], listening, *self._arguments(part)])
        for child in [child for child in self.children.running if child.name in self.ports]:
            path = "/metrics" if child.name == "node_exporter" else "/-/ready"
            child.wait_until(partial(answers, self.url(child.name) + path), START_SECONDS)


def with_intervals(configuration: str, seconds: Mapping[str, float]) -> str:
    """Return a Prometheus configuration with other global intervals; a scrape may then take four fifths of its own."""
    settings = {f"{name}_interval": f"{each * 1000:.0f}ms" for name, each in seconds.items()}
    if "scrape" in seconds:
        settings["scrape_timeout"] = f"{seconds['scrape'] * 800:.0f}ms"
    for name, value in settings.items():
        configuration = re.sub(rf"^(  {name}:) .*$", rf"\1 {value}", configuration, count=1, flags=re.MULTILINE)
    return configuration


def get(url: str) -> str:
    """Return the body of a GET of `url`; raise ProcessError unless it is answered with status 200."""
    try:
        response = ask(url, 10)
    except HttpError as error:
        raise ProcessError(f"no answer from {url}: {error}") from error
    if response.status != 200:
        raise ProcessError(f"no answer from {url}: {response.status} {response.reason}")
    return response.body.decode()
