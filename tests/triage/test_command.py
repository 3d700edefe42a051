"""`tachograph triage` as a person uses it: against a real Prometheus, without one, with exporters and logs."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.__main__ import main
from tachograph.text.moments import iso
from tachograph.triage import elsewhere
from tachograph.triage.findings import TriageFinding
from tachograph_lab.processes import free_port
from tests.report.conftest import HANG, PAGE, RUN, Incident
from tests.schemas import conforms

pytestmark = [pytest.mark.e2e, pytest.mark.usefixtures("wide")]

NOBODY = "http://127.0.0.1:1"
OOM = """\
[rank3]: Traceback (most recent call last):
[rank3]:   File "/home/u/train.py", line 88, in forward
[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 3 has a total capacity of 79.11 GiB
"""


def asked(capsys: pytest.CaptureFixture[str], *arguments: str | Path, status: int, run: str = RUN) -> tuple[str, str]:
    """Return what the command prints, and what it says on stderr."""
    assert main(["triage", run, *map(str, arguments)]) == status, capsys.readouterr()
    said = capsys.readouterr()
    return said.out, said.err


def during(incident: Incident) -> tuple[str, ...]:
    return "--prometheus", incident.url, "--at", iso(incident.start + PAGE + 60)


def test_a_hang_behind_a_broken_gpu(incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """The finding, the questions with their evidence, what fires besides, and three commands, filled in."""
    out, err = asked(capsys, *during(incident), status=3)
    lines = out.splitlines()
    assert lines[0].startswith(f"{RUN} at ")
    assert lines[1] == "PAGE: hardware: a GPU is broken (GpuLost): GPU 5 of node-2"
    assert "  also firing: RunHung (critical): rank 21 (node-2, GPU 5)" in lines
    assert any(re.match(r" 3  NO   Does it make steps\?  RunHung", line) for line in lines)
    assert "         GPU 5 of node-2 is lost" in lines
    assert "elsewhere" not in out
    assert "  1. ssh node-2 nvidia-smi -q -i 5 -d TEMPERATURE,PERFORMANCE,ECC,POWER" in lines
    assert err == ""


def test_as_json(incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """The same as an object."""
    said = conforms("triage", asked(capsys, *during(incident), "--json", status=3)[0])
    assert said["version"] == 1
    assert said["run"] == RUN
    assert {said["finding"][key] for key in ("severity", "category", "mode")} == {"page", "hardware", "gpu_fault"}
    assert said["finding"]["gpus"] == ["node-2/5"]
    assert [one["name"] for one in said["questions"]][:3] == ["alive", "started", "progress"]
    assert len(said["next"]) == 3
    assert said["sources"][0]["ok"]


def test_before_it_nothing_is_wrong(incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """The same run a quarter of an hour before; the same moment a second later would be the same answer."""
    when = iso(incident.start + HANG - 900)
    out, _ = asked(capsys, "--prometheus", incident.url, "--at", when, status=0)
    assert "ok: nothing is wrong" in out or "ok: it has not begun yet" in out


def test_the_record(incident: Incident, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A record has what fired and when, restarts, hardware, saves and the cost; what a person must say is marked."""
    path = tmp_path / "incident.md"
    _, err = asked(capsys, *during(incident), "--incident", path, status=3)
    assert "incident.md written" in err
    made = path.read_text(encoding="utf-8")
    assert made.startswith(f"# Incident: {RUN}, ")
    assert "| category | hardware |" in made
    assert re.search(r"\| \S+Z \| alert \| RunHung \(page\), rank 21, node-2, GPU 5", made)
    assert re.search(r"\| \S+Z \| hardware \| GPU 5 of node-2 GPU lost", made)
    assert re.search(r"\| \S+Z \| checkpoint \| saved step 3,600 \|", made)
    assert "GPU-hours" in made
    assert re.search(r"1\. Why was somebody called\? \w.* fired\.", made)
    assert made.count("(to be filled in by a person)") >= 5
    assert asked(capsys, *during(incident), "--incident", path, status=1)[1].strip().endswith("name another file")
    assert path.read_text(encoding="utf-8") == made


def test_the_record_of_a_restart(incident: Incident, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After it is over the record has the end of the page and the new attempt."""
    path = tmp_path / "incident.md"
    asked(capsys, "--prometheus", incident.url, "--at", iso(incident.end), "--incident", path, status=0)
    made = path.read_text(encoding="utf-8")
    assert re.search(r"restart \| attempt 1 began", made)
    assert re.search(r"alert \| RunHung, rank 21, node-2, GPU 5 ended", made)


@pytest.mark.parametrize("where", ["/nowhere/incident.md", "/proc/incident.md", ""])
def test_a_record_that_cannot_be_written(where: str, incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """Said before anything is asked, or when it is written; nothing else is printed twice."""
    _, err = asked(capsys, *during(incident), "--incident", where or "/", status=1)
    assert err.startswith("tachograph triage: ")
    assert err.count("\n") == 1


def test_an_unknown_run(incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """Which runs there are, each on a line; a hostile name is printable."""
    _, err = asked(capsys, "--prometheus", incident.url, status=1, run="llama-80b")
    assert err.splitlines()[0].startswith("tachograph triage: no run 'llama-80b' in Prometheus at ")
    assert f"  {RUN}" in err.splitlines()
    assert len(err.splitlines()) == 3


def test_a_time_of_which_nothing_is_known(incident: Incident, capsys: pytest.CaptureFixture[str]) -> None:
    """Before Prometheus knew of it: no answer, and no verdict."""
    out, _ = asked(capsys, "--prometheus", incident.url, "--at", iso(incident.start - 86_400), status=1)
    assert "no answer: nothing is known of it at this time" in out
    assert "  last seen by the rules: about 2" in out


@pytest.mark.parametrize("when", ["yesterday", "2099-01-01T00:00:00Z", "-5m", ""])
def test_a_time_that_is_none(when: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A usage error that names the option."""
    assert main(["triage", RUN, f"--at={when}"]) == 2
    assert "--at" in capsys.readouterr().err


def test_rules_that_are_not_there(bare: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A Prometheus without our rules has been tried, and is said to be of no use."""
    out, _ = asked(capsys, "--prometheus", bare, "--exporter", NOBODY, status=1)
    assert "has none of our rules" in out
    assert "not asked: exporter http://127.0.0.1:1: " in out


def test_without_prometheus_the_exporters_answer(
    exporter_at: Callable[..., Any], ranks_at: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """What was tried, and what the exporter itself concludes, with the boxes that its ranks left."""
    node = exporter_at("--no-gpu", "--blackbox.ras=")
    ranks = ranks_at(node, "root/a/r", {0: 4, 1: 3, 2: 4, 3: 4})
    node.eventually(lambda: len(conforms("api-blackbox", node.get("/api/blackbox/root%2Fa%2Fr")[2])["boxes"]) == 4)
    dark = ("--prometheus", f"http://127.0.0.1:{free_port()}", "--exporter", node.url)
    out, _ = asked(capsys, *dark, status=0, run="root/a/r")
    assert "not asked: Prometheus: no Prometheus at http://127.0.0.1:" in out
    assert "by exporters alone" in out
    assert "rank 1: " in out
    assert "/home/u/data.py:88 load_shard" in out
    hung = elsewhere.nothing("root/a/r", 0.0)
    hung.finding = TriageFinding("page", "communication", "communication_stall", "no single rank stands out")
    elsewhere.add_boxes(hung, [node.url])
    assert hung.finding.ranks == ("1",)
    assert hung.finding.words.startswith("no single rank stands out; by their boxes: rank 1: ")
    ranks[2].close()
    node.eventually(lambda: conforms("api-node", node.get("/api/node")[2])["runs"][0]["state"] == "dead")
    out, _ = asked(capsys, *dark, status=3, run="root/a/r")
    assert "PAGE: software: a rank was killed or crashed: rank 2 " in out
    out, _ = asked(capsys, *dark, status=1, run="bob/s")
    assert "it has no rank of this run; it has root/a/r" in out


def test_without_anything_the_logs_answer(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Logs alone name the cause; what cannot be read is listed, and costs nothing else."""
    (tmp_path / "job.out").write_text(OOM, encoding="utf-8")
    (tmp_path / "core.bin").write_bytes(bytes(range(256)) * 64)
    dark = ("--prometheus", NOBODY, "--exporter", NOBODY)
    out, _ = asked(capsys, *dark, "--logs", tmp_path, "--logs", tmp_path / "gone", status=3)
    assert "PAGE: out of memory; its log says: rank 3: " in out
    assert f"not asked: log {tmp_path / 'core.bin'}: " in out
    assert f"not asked: log {tmp_path / 'gone'}: " in out
    (tmp_path / "job.out").write_text("step 1 loss 2.3\n", encoding="utf-8")
    out, _ = asked(capsys, *dark, "--logs", tmp_path, status=1)
    assert "nothing in them is wrong" in out


def test_a_log_that_knows_more_than_a_figure(
    incident: Incident, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A finding that has a cause of its own keeps it, and the log is evidence beside it."""
    (tmp_path / "job.out").write_text(OOM, encoding="utf-8")
    said = conforms("triage", asked(capsys, *during(incident), "--logs", tmp_path, "--json", status=3)[0])
    assert said["finding"]["category"] == "hardware"
    assert said["questions"][-1]["name"] == "logs"
    assert "out of memory" in said["questions"][-1]["evidence"][0]


def test_it_fits_a_terminal(incident: Incident, fits: Callable[..., None], tmp_path: Path) -> None:
    """But for the commands to run next; with sources that could not be asked, too."""
    next_command = r"  \d\. "
    fits(lambda: main(["triage", RUN, *during(incident)]), next_command)
    nobody = ("--prometheus", "http://127.0.0.1:9", "--exporter", "127.0.0.1:9", "--logs", str(tmp_path))
    fits(lambda: main(["triage", RUN, *nobody]), next_command)
