"""From the wheel to a page: an environment with nothing else, a real Prometheus and Alertmanager on its bundle."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest

from tachograph.servers.http_client import ask
from tachograph_lab.pager import Pager
from tachograph_lab.processes import Child, Children, answers, free_port

pytestmark = [pytest.mark.slow, pytest.mark.e2e]

NODE = "node-1"
LOOP = """\
import time, tachograph

recorder = tachograph.Recorder(run="from-the-wheel")
for batch in recorder.data(range(1_000_000)):
    with recorder.step() as step:
        time.sleep(0.05)
        step.log(loss=1.0)
"""
OUTSIDE = {"PYTHONPATH": "", "XDG_RUNTIME_DIR": ""}
"""Nothing leads to the checkout."""


def said(*command: str | Path) -> str:
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, cwd="/", env={**os.environ, **OUTSIDE}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Site:
    """A site that was set up by the bundle's own guide: addresses are put in, all else is as written."""

    def __init__(self, tachograph: Path, programs: Mapping[str, Path], folder: Path, pager: str) -> None:
        self.tachograph = tachograph
        self.programs = programs
        self.folder = folder
        self.bundle = folder / "bundle"
        self.ports = {name: free_port() for name in ("tachograph", "node", "prometheus", "alertmanager", "cluster")}
        flags = ["--node-job", "node-exporter", "--receiver", "webhook"]
        said(tachograph, "bundle", "--out", self.bundle, *flags)
        for name in ("tachograph", "node", "prometheus", "alertmanager"):
            targets = [{"targets": [f"127.0.0.1:{self.ports[name]}"], "labels": {"instance": NODE}}]
            (self.bundle / f"targets/{name}.yml").write_text(json.dumps(targets), encoding="utf-8")
        path = self.bundle / "alertmanager/alertmanager.yml"
        text = path.read_text(encoding="utf-8").replace("http://localhost:5001", pager)
        path.write_text(text.replace("https://hc-ping.com/", f"{pager}/watchdog/"), encoding="utf-8")

    def check(self) -> None:
        """Run the checks that the guide names."""
        said(self.programs["promtool"], "check", "rules", *(self.bundle / "rules").glob("*.yml"))
        said(self.programs["promtool"], "check", "config", self.bundle / "prometheus.yml")
        for name in ("alertmanager.yml", "subroute.yml"):
            said(self.programs["amtool"], "check-config", self.bundle / "alertmanager" / name)
            said(self.tachograph, "bundle", "--check", self.bundle / "alertmanager" / name)

    def start(self, children: Children) -> None:
        """Start everything but the training."""
        socket, address = self.folder / "rank.sock", f"127.0.0.1:{self.ports['tachograph']}"
        exporter = [self.tachograph, "exporter", "--socket", socket, "--web.listen-address", address]
        started = {
            f"{address}/-/ready": children.start("exporter", exporter, OUTSIDE),
            self._at("node", "/metrics"): self._program(children, "node_exporter", "node"),
            self._at("prometheus", "/-/ready"): self._program(
                children, "prometheus", "prometheus", f"--config.file={self.bundle / 'prometheus.yml'}",
                f"--storage.tsdb.path={self.folder / 'tsdb'}", "--rules.alert.for-grace-period=15s",
            ),
            self._at("alertmanager", "/-/ready"): self._program(
                children, "alertmanager", "alertmanager", f"--storage.path={self.folder / 'nflog'}",
                f"--config.file={self.bundle / 'alertmanager/alertmanager.yml'}",
                # A twentieth of the time that the head of alertmanager.yml gives.
                f"--cluster.listen-address=127.0.0.1:{self.ports['cluster']}", "--cluster.gossip-interval=60ms",
            ),
        }  # fmt: skip
        for ready, child in started.items():
            child.wait_until(lambda ready=ready: answers(f"http://{ready}"), 60)  # type: ignore[misc]

    def rank(self, children: Children, number: int) -> Child:
        """Start a rank of two."""
        identity = {"RANK": str(number), "WORLD_SIZE": "2", "TACHOGRAPH_SOCKET": str(self.folder / "rank.sock")}
        (self.folder / "train.py").write_text(LOOP, encoding="utf-8")
        command = [self.tachograph.with_name("python"), self.folder / "train.py"]
        return children.start(f"rank-{number}", command, {**OUTSIDE, **identity})

    def doctor(self) -> str:
        """Return what `tachograph doctor` says of the site."""
        where = [f"--{name}=http://{self._at(name, '')}" for name in ("prometheus", "alertmanager")]
        command = [self.tachograph, "doctor", f"--exporter={self._at('tachograph', '')}", *where]
        environment = {**os.environ, **OUTSIDE, "TACHOGRAPH_SOCKET": str(self.folder / "rank.sock")}
        return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environment).stdout

    def value(self, expression: str) -> float | None:
        """Return the value of the first series of an instant query."""
        response = ask(f"http://{self._at('prometheus', '/api/v1/query?query=')}{expression}", 10)
        result = json.loads(response.body)["data"]["result"]
        return float(result[0]["value"][1]) if result else None

    def _program(self, children: Children, program: str, part: str, *flags: str) -> Child:
        listen = f"--web.listen-address={self._at(part, '')}"
        return children.start(program, [self.programs[program], listen, *flags])

    def _at(self, part: str, path: str) -> str:
        return f"127.0.0.1:{self.ports[part]}{path}"


def test_a_killed_rank_is_paged(environment: Callable[[str], Path], programs: Mapping[str, Path]) -> None:
    """Without the checkout: exporter, three-line loop, bundle, and the page that leads to a runbook in the bundle."""
    tachograph = environment("exporter,tools")
    where = said(tachograph.with_name("python"), "-c", "import tachograph; print(tachograph.__file__)")
    assert where.startswith(str(tachograph.parents[1]))
    with Pager() as pager, tempfile.TemporaryDirectory(prefix="site-") as folder:
        site = Site(tachograph, programs, Path(folder), pager.url)
        site.check()
        with Children(Path(folder) / "logs") as children:
            site.start(children)
            ranks = [site.rank(children, number) for number in (0, 1)]
            ranks[1].wait_until(lambda: site.value("count(tachograph_train_steps_total>20)") == 2, 60)
            ranks[0].wait_until(lambda: site.value('count(up{job="node-exporter"}==1)') == 1, 30)
            asked = site.doctor()
            for words in (
                "job node-exporter: 1 up",
                "`instance` names 1 node",
                "our routes and inhibitions, and our templates",
            ):
                assert f"\nok   {words}" in asked.replace("it has ", ""), asked
            since = time.time()
            os.kill(ranks[1].pid, signal.SIGKILL)
            page = pager.wait_for(lambda page: page.critical and page.receiver == "page", 90, after=since)
            assert page is not None, [(each.alert, dict(each.labels)) for each in pager.pages()]
            assert (page.alert, page.labels["rank"], page.labels["instance"]) == ("RankDead", "1", NODE)
            runbook = site.bundle / "runbooks" / page.annotations["runbook_url"].rpartition("/")[2]
            assert runbook.read_text(encoding="utf-8").startswith("# RankDead")
