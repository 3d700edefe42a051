"""The queries and commands of the runbooks, run as they stand: by a real Prometheus, exporter and Alertmanager."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tachograph_lab import binaries
from tachograph_lab.processes import ProcessError
from tests.runbooks import shell
from tests.runbooks.monitored import MonitoredReplay
from tests.runbooks.page import PAGES, blocks, prose, text_of

REPLAYED = {"<run>": "llama-7b", "<rank>": "3", "<node>": "node-0", "<uuid>": "GPU-0"}
"""What stands in a query over the replay in place of each placeholder."""

CULPRITS = {"InvariantBroken": "3", "DataStall": "5", "MemoryLeak": "6", "MfuDropped": "11"}
"""Runbook -> the rank of the replay that the first of its queries, which tabulates the suspects, must name first."""

RUN_HERE = ("tachograph", "promtool", "curl")
"""The programs whose lines are run: they ask Prometheus, Alertmanager or an exporter, or read what one wrote."""

ELSEWHERE = re.compile(r"(srun|ssh|kubectl) |/etc/")
"""What is in a line that asks through a cluster or on another machine."""


@pytest.fixture(scope="module")
def monitored(programs: Mapping[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[MonitoredReplay]:
    """The replay of four culprits, and a node that trains; everything is shut down at the end."""
    suite = next(one for one in ("bookworm", "sid") if binaries.find(one) == programs)
    replay = MonitoredReplay(tmp_path_factory.mktemp("monitored"), Path(__file__).with_name("culprits.yaml"), suite)
    with replay:
        replay.wait()
        yield replay


def queries(name: str) -> list[str]:
    """Return the queries of a page, filled in for the replay."""
    lines = (line.partition("   #")[0].strip() for line in blocks(text_of(name), "promql"))
    return [filled(line, REPLAYED) for line in lines]


def filled(line: str, values: Mapping[str, str]) -> str:
    """Return a line with values in place of its placeholders; longer ones first, as `<node>:10024` has its own."""
    for placeholder, value in values.items():
        line = line.replace(placeholder, value)
    return line


def test_prometheus_evaluates_every_query(monitored: MonitoredReplay) -> None:
    """Without an error, over series of a run with culprits and of its GPUs and nodes; none has a placeholder left."""
    faults = []
    for name in PAGES:
        for query in queries(name):
            try:
                assert not shell.PLACEHOLDER.search(query), query
                monitored.query(query)
            except ProcessError as error:
                faults.append(f"{name}: {query}\n    {error}")
    assert not faults, "\n".join(faults)


def test_a_query_that_prometheus_refuses_is_found(monitored: MonitoredReplay) -> None:
    """The check above can fail: one side of a join has several series for each of the other's."""
    with pytest.raises(ProcessError, match="many-to-many"):
        monitored.query("tachograph_rank_up * on (run) tachograph_rank_up")


@pytest.mark.parametrize("name", CULPRITS)
def test_the_first_query_names_the_culprit_first(monitored: MonitoredReplay, name: str) -> None:
    """It tabulates the suspects, rank by rank, the worst first."""
    rows = monitored.query(queries(name)[0])
    assert rows, f"{name} tabulates nobody"
    assert rows[0].labels["rank"] == CULPRITS[name], [(row.labels, row.value) for row in rows]


def lines() -> list[str]:
    """Return each line once that is run here, in the order of the pages, the index first."""
    found: dict[str, None] = {}
    for name in ("README", *PAGES):
        spans = re.findall(r"`(tachograph top [^`\n]+)`", prose(text_of(name)))
        for line in (*blocks(text_of(name), "sh"), *spans):
            bare = line.partition("   #")[0].strip()
            if any(words[0] in RUN_HERE for words in shell.commands(bare)) and not ELSEWHERE.search(bare):
                found[bare] = None
    return list(found)


def test_every_command_does_what_it_says(monitored: MonitoredReplay, tmp_path: Path) -> None:
    """Each line in a shell, filled in for the run that trains: status 0; a search may find nothing."""
    (tmp_path / "limits.yml").write_text("hang_seconds: 60\n", encoding="utf-8")
    programs = [Path(sys.executable).parent, binaries.find("bookworm")["promtool"].parent]
    environment = os.environ | {
        "PATH": os.pathsep.join([*map(str, programs), os.environ["PATH"]]),
        "PROMETHEUS_URL": monitored.url("prometheus"),
        "ALERTMANAGER_URL": monitored.url("alertmanager"),
        "TACHOGRAPH_EXPORTER_URL": f"http://{monitored.exporter}",
    }
    values = dict(monitored.addresses)
    faults = []
    for line in lines():
        done = subprocess.run(
            ["bash", "-c", filled(line, values)],
            cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=60, check=False,
        )  # fmt: skip
        if (
            done.returncode > ("| grep" in line and "curl" in line)
            or done.stderr
            or (not done.stdout and "curl" not in line)
        ):
            faults.append(f"{line}\n    status {done.returncode}: {done.stdout}{done.stderr}")
        if made := re.search(r"\b[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\b", done.stdout):
            values["<id>"] = made[0]
    assert not faults, "\n".join(faults)
