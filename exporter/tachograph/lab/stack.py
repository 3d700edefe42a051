"""The shipped stack on loopback: exporter, node_exporter, Prometheus and Alertmanager on free ports, with our rules.

Configuration and rules are the shipped files; only addresses differ. Everything written stays in one folder.
"""

from __future__ import annotations

import json
import shutil
import socket
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from tachograph.lab import binaries, simulated_gpus
from tachograph.lab.checkout import root
from tachograph.lab.processes import Child, Children, ProcessError, answers, free_port

START_SECONDS = 30.0
SIMULATED_GPUS = 4
MAX_SCRATCH_PATH = 60
"""The kernel allows 107 bytes for a unix socket, and PyTorch's loaders add up to 40 to the folder's path."""

SHIPPED_PAGER = "http://localhost:9094"
"""Where the receivers of the shipped `alertmanager.yml` send; each has a path of its own there."""

NODE_COLLECTORS = ("filesystem", "infiniband", "meminfo", "netclass", "netdev", "pressure")
"""What the rules read of node_exporter; a distribution's package may have some of it switched off."""

TARGETS: Mapping[str, str] = {
    "tachograph": "exporter",
    "node": "node_exporter",
    "prometheus": "prometheus",
    "alertmanager": "alertmanager",
}
"""File of `prometheus/targets/` -> the part of the stack whose address stands in it."""


@dataclass(frozen=True)
class Sample:
    """One sample of an instant query: its labels and value."""

    labels: Mapping[str, str]
    value: float


class Stack:
    """The running stack, as a context manager. Alertmanager tells `pager_url`/<receiver> all it has to say.

    `node` is the name this machine goes by in alerts. `gpus` are variables that show the exporter its GPUs; by default
    it sees this machine's, else simulated ones. With `keep` the processes outlive a clean exit.
    Raises BinariesUnavailable and ProcessError.
    """

    def __init__(
        self,
        folder: Path,
        pager_url: str,
        *,
        suite: str = binaries.SYSTEM,
        keep: bool = False,
        gpus: Mapping[str, str] | None = None,
    ) -> None:
        self.folder = folder
        self.node = socket.gethostname()
        self.children = Children(folder, keep=keep)
        self.ports = {part: free_port() for part in TARGETS.values()}
        self.simulated_gpus = SIMULATED_GPUS if gpus is None and simulated_gpus.needed() else 0
        self.exporter: Child
        self._pager_url = pager_url
        self._suite = suite
        self._gpu_environment = gpus or {}

    def __enter__(self) -> Stack:
        programs = binaries.ensure(self._suite)
        self._versions = {part: binaries.version(programs[part]) for part in self.ports if part in programs}
        with ExitStack() as starting:
            self.socket = self._scratch(starting) / "rank.sock"
            starting.enter_context(self.children)
            self._render()
            self._start(programs)
            self._running = starting.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        self._running.__exit__(kind, *error)  # type: ignore[arg-type]

    def address(self, part: str) -> str:
        """Return the host and port of a part, named as in TARGETS."""
        return f"127.0.0.1:{self.ports[part]}"

    def url(self, part: str) -> str:
        """Return the base URL of a part."""
        return f"http://{self.address(part)}"

    def description(self) -> str:
        """Return which programs run, with their versions."""
        return ", ".join(f"{part} {'.'.join(map(str, number))}" for part, number in self._versions.items())

    def query(self, expression: str) -> list[Sample]:
        """Return the result of an instant query of Prometheus."""
        parameters = urllib.parse.urlencode({"query": expression})
        rows = json.loads(_get(f"{self.url('prometheus')}/api/v1/query?{parameters}"))["data"]["result"]
        return [Sample(row["metric"], float(row["value"][1])) for row in rows]

    def scrape(self) -> str:
        """Return the exporter's page now."""
        return _get(f"{self.url('exporter')}/metrics")

    def start_exporter(self) -> None:
        """Start the exporter on its address and socket, for the first time or again."""
        command = [sys.executable, "-m", "tachograph", "exporter", "--web.listen-address", self.address("exporter")]
        self.exporter = self.children.start("exporter", [*command, "--socket", self.socket], self._gpu_environment)
        self.exporter.wait_until(lambda: answers(f"{self.url('exporter')}/-/ready"), START_SECONDS)

    def _render(self) -> None:
        for part in ("prometheus", "alertmanager"):
            shutil.rmtree(self.folder / part, ignore_errors=True)
            shutil.copytree(root() / part, self.folder / part)
            shutil.rmtree(self._data(part), ignore_errors=True)
        for file, part in TARGETS.items():
            target = {"targets": [self.address(part)], "labels": {"instance": self.node}}
            (self.folder / "prometheus/targets" / f"{file}.yml").write_text(json.dumps([target]), encoding="utf-8")
        alertmanager = self.folder / "alertmanager/alertmanager.yml"
        text = alertmanager.read_text(encoding="utf-8")
        alertmanager.write_text(text.replace(SHIPPED_PAGER, self._pager_url), encoding="utf-8")
        if self.simulated_gpus:
            self._gpu_environment = simulated_gpus.environment(self.folder / "nvml", self.simulated_gpus)

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

    def _data(self, part: str) -> Path:
        return self.folder / f"{part}-data"

    def _start(self, programs: Mapping[str, Path]) -> None:
        self.start_exporter()
        own_arguments: Mapping[str, list[str]] = {
            "node_exporter": [f"--collector.{name}" for name in NODE_COLLECTORS],
            "alertmanager": [
                f"--config.file={self.folder / 'alertmanager/alertmanager.yml'}",
                f"--storage.path={self._data('alertmanager')}",
                f"--web.external-url={self.url('alertmanager')}",
                "--cluster.listen-address=",
            ],
            "prometheus": [
                f"--config.file={self.folder / 'prometheus/prometheus.yml'}",
                f"--storage.tsdb.path={self._data('prometheus')}",
                f"--web.external-url={self.url('prometheus')}",
                "--web.cors.origin=.*",
                "--rules.alert.for-grace-period=15s",
            ],
        }
        for part, arguments in own_arguments.items():
            self.children.start(part, [programs[part], f"--web.listen-address={self.address(part)}", *arguments])
        for child in self.children.running:
            path = "/metrics" if child.name == "node_exporter" else "/-/ready"
            url = self.url(child.name) + path
            child.wait_until(partial(answers, url), START_SECONDS)


def _get(url: str) -> str:
    try:
        with urllib.request.urlopen(url, timeout=10) as response:
            return str(response.read().decode())
    except OSError as error:
        raise ProcessError(f"no answer from {url}: {error}") from error
