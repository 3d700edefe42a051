"""A real exporter beside training scripts in processes of their own, and everything its /metrics showed meanwhile."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from tachograph_lab.processes import Children, free_port
from tests.torch_programs import TorchProgram, TorchPrograms

QUICK_EXPORTER = Path(__file__).parents[1] / "quick_exporter.py"
LIMIT = 250.0
LAUNCHER = ("TACHOGRAPH", "SLURM", "OMPI", "PMI", "TORCHELASTIC", "RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_")

Series = tuple[str, frozenset[tuple[str, str]]]


@dataclass
class Done:
    """A script that ended: its status, what it said, and the last value that each series had on any page."""

    status: int
    out: str
    errors: str
    series: dict[Series, float]

    def value(self, name: str, **labels: object) -> float | None:
        """The last value of a training series, None if it never was there."""
        wanted = frozenset((key, str(text)) for key, text in labels.items())
        return self.series.get((f"tachograph_train_{name}", wanted))

    def having(self, name: str, **labels: object) -> dict[frozenset[tuple[str, str]], float]:
        """The series of a name that have these labels, by all of their labels."""
        wanted = {(key, str(text)) for key, text in labels.items()}
        full = f"tachograph_train_{name}"
        return {found: value for (series, found), value in self.series.items() if series == full and wanted <= found}


def launched(words: Sequence[str | Path], ranks: int) -> list[str]:
    """The words after `python` that run a program, under torchrun where there are `ranks`."""
    address = ("--master-addr", "127.0.0.1", "--master-port", str(free_port()))
    launcher = ("-m", "torch.distributed.run", "--nproc-per-node", str(ranks), *address) if ranks else ()
    return [*launcher, *map(str, words)]


class Scraped:
    """Runs scripts against one exporter process, and scrapes it ten times a second until they have ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.socket = folder / "rank.sock"
        self._out, self._errors = folder / "out", folder / "errors"
        self._page = ""

    def __enter__(self) -> Scraped:
        self._children = Children(self.folder).__enter__()
        flags = ("--no-gpu", "--rank.series=all", "--web.listen-address=127.0.0.1:0", f"--socket={self.socket}")
        exporter = self._children.start("exporter", [sys.executable, str(QUICK_EXPORTER), *flags])
        serving = re.compile(r"msg=serving address=(\S+)")
        exporter.wait_until(lambda: bool(serving.search(exporter.log.read_text())), LIMIT)
        found = serving.search(exporter.log.read_text())
        assert found is not None
        self.url = f"http://{found[1]}/metrics"
        return self

    def __exit__(self, *exception: object) -> None:
        self._children.stop()

    def environment(self, **more: str) -> dict[str, str]:
        """A training process' environment: our socket, one thread, no launcher but the one a test starts."""
        mine = {name: text for name, text in os.environ.items() if not name.startswith(LAUNCHER)}
        socket = {"TACHOGRAPH_SOCKET": str(self.socket), "GLOO_SOCKET_IFNAME": "lo", "OMP_NUM_THREADS": "1"}
        return {**mine, **socket, "PYTHONWARNINGS": "ignore", **more}

    def run(self, *words: str | Path, ranks: int = 0, folder: Path | None = None, **environment: str) -> Done:
        """Run `python words…`, under torchrun where there are `ranks`, to its end."""
        command = [sys.executable, *launched(words, ranks)]
        with self._out.open("w") as out, self._errors.open("w") as errors:
            process = subprocess.Popen(
                command, stdout=out, stderr=errors, cwd=folder or self.folder, env=self.environment(**environment)
            )
        return self._done(process)

    def fork(
        self,
        programs: TorchPrograms,
        *words: str | Path,
        ranks: int = 0,
        folder: Path | None = None,
        **environment: str,
    ) -> Done:
        """Run the same in a process that finds PyTorch imported; with `ranks` it is torchrun's, not theirs."""
        program = programs.python(
            launched(words, ranks), environment=self.environment(**environment), folder=folder or self.folder,
            out=self._out, errors=self._errors,
        )  # fmt: skip
        return self._done(program)

    def _done(self, process: subprocess.Popen[bytes] | TorchProgram) -> Done:
        """Scrape until a process has ended, and then until a page knows it."""
        series: dict[Series, float] = {}
        self._page = ""
        end = time.monotonic() + LIMIT
        try:
            while (status := process.poll()) is None:
                assert time.monotonic() < end, self._errors.read_text()
                series.update(self._scrape())
                time.sleep(0.1)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        last = self._page
        while self._page == last:  # a page is shared for a tick; the next one has the script's end
            series.update(self._scrape())
            time.sleep(0.02)
        return Done(status, self._out.read_text(), self._errors.read_text(), series)

    def _scrape(self) -> Iterator[tuple[Series, float]]:
        """Scrape; yield what the last page did not have: the parser takes ten times as long as a scrape."""
        with urllib.request.urlopen(self.url, timeout=LIMIT) as answer:
            page = answer.read().decode()
        known = frozenset(self._page.splitlines())
        new = (line for line in page.splitlines() if line not in known and not line.startswith("#"))
        self._page = page
        for family in text_string_to_metric_families("".join(f"{line}\n" for line in new)):
            for sample in family.samples:
                yield (sample.name, frozenset(sample.labels.items())), sample.value
