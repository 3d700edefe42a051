"""A node, through its exporter: real ranks, recorded GPUs, and whatever else may answer there."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.config import DEFAULT_PORT as EXPORTERS_PORT
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.node_source import DEFAULT_PORT, NodeSource, exporter_url

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = (ROOT / "tests/node/golden/node.prom").read_text(encoding="utf-8")
CAPTURE = (ROOT / "tests/captures/made-up-h100__580.95.05.prom").read_text(encoding="utf-8")
ABOUT = 'tachograph_exporter_info{version="0.1.0",python="3.11"} 1\n'

Top = Callable[..., tuple[int, str, str]]


def train(exporter: Any, source: NodeSource) -> None:
    """Let four ranks say two times that they train, a step of half a second and 10 steps apart; rank 2 waits least."""
    speakers = [exporter.speaker("llama-7b", rank) for rank in range(4)]
    for speaker in speakers:
        assert speaker.hello(world_size=4)["ok"]
    now = time.time()
    for done in (10, 20):
        for rank, speaker in enumerate(speakers):
            wait = 0.02 if rank == 2 else 0.2
            metrics = {
                "steps_total": done, "tokens_total": 100 * done, "loss": 2.5,
                "recent_step_seconds": 0.5, "recent_wait_seconds": wait,
            }  # fmt: skip
            phase = "data" if rank == 2 else "backward"
            speaker.state(metrics, step=480 + done, phase=phase, phase_since=now, progress_time=now - 10 + done / 2)
        for rank in range(4):
            exporter.eventually(
                lambda rank=rank, done=done: (
                    exporter.scrape().value("train_step", run="llama-7b", rank=rank) == 480 + done
                )
            )
        if done == 10:
            source.fetch()


def test_real_ranks(exporter: Any) -> None:
    """Rates are those of the steps between two looks; the rank that waits least is late, and next after the dead."""
    source = NodeSource(exporter.url)
    train(exporter, source)
    exporter.speakers[3].close()
    exporter.eventually(lambda: exporter.scrape().value("rank_state", run="llama-7b", rank=3, state="dead") == 1)
    facts = source.fetch()
    (run,) = facts.runs
    assert (run.name, run.state, run.step, run.loss, run.world_size) == ("llama-7b", "dead", 500, 2.5, 4)
    assert run.ranks == {"running": 3, "dead": 1}
    assert run.step_seconds == pytest.approx(0.5)
    assert run.tokens_per_second == pytest.approx(4 * 200, rel=0.01)
    assert [rank.rank for rank in facts.ranks] == [3, 2, 0, 1]
    late = facts.ranks[1]
    assert (late.marks, late.phase) == (("late",), "data")
    assert (late.lag_seconds, late.wait_seconds, late.lag_ratio) == pytest.approx((0.18, 0.02, 0.36))
    exporter.eventually(lambda: source.fetch().notes == ("GPUs cannot be read: no driver",))


def test_once_and_json(exporter: Any, top: Top) -> None:
    """One picture on no terminal is plain text of all rows; --json has the same facts; both end with status 0."""
    status, text, error = top("--exporter", exporter.url, "--once", "--interval", "0.2")
    assert (status, error) == (0, "")
    assert text.isprintable() is False
    assert "\x1b" not in text
    assert " DEAD  llama-7b  3 of 4 ranks up, " in text
    assert re.search(r"\n▌ +3 dead ", text)
    status, out, _ = top("--exporter", exporter.url.removeprefix("http://"), "--json", "--interval", "0.2")
    facts = json.loads(out)
    assert (status, facts["view"], facts["source"], len(facts["ranks"])) == (0, "node", f"{exporter.url}/metrics", 4)
    assert facts["alerts"] is None


def test_the_page_is_read_as_prometheus_reads_it() -> None:
    """Of recorded pages every sample of ours is there, by its name in the catalog, escapes and NaN included."""
    for text in (GOLDEN, CAPTURE):
        page, ours = ExporterPage(text), 0
        for metric in catalog.METRICS:
            lines = [line for line in text.splitlines() if line.startswith((f"{metric.name} ", f"{metric.name}{{"))]
            values = [float(line.rpartition(" ")[2]) for line in lines]
            assert [repr(float(sample.value)) for sample in page.of(metric)] == list(map(repr, values)), metric.name
            ours += len(values)
        assert ours > 30
    runs = {sample.labels["run"] for sample in ExporterPage(GOLDEN).of(catalog.RANK_INFO)}
    assert runs == {"llama-7b", '"quoted\\'}


def test_a_misuse_is_noted(pages: Any) -> None:
    """With its counts over the ranks of the run here; the texts are on the status page."""
    name = catalog.TRAIN_MISUSE.name
    pages.text = GOLDEN + "".join(
        f'{name}{{run="llama-7b",rank="{rank}",kind="{kind}"}} {number}\n'
        for rank, kind, number in ((0, "unknown_name", 9000), (1, "unknown_name", 3), (0, "no_steps", 1))
    )
    notes = NodeSource(pages.url).fetch().notes
    assert notes[-1].startswith("run llama-7b misuses its recorder (1 no steps, 9,003 unknown name): ")


def test_a_recorded_page(pages: Any) -> None:
    """Of the golden page, several runs come worst first, and what is absent stays unknown."""
    pages.text = GOLDEN
    facts = NodeSource(pages.url).fetch()
    assert [(run.name, run.state) for run in facts.runs] == [("llama-7b", "dead"), ('"quoted\\', "failed")]
    assert [(rank.run, rank.rank, rank.state) for rank in facts.ranks] == [
        ('"quoted\\', 0, "failed"), ("llama-7b", 1, "dead"), ("llama-7b", 0, "running"),
    ]  # fmt: skip
    assert (facts.ranks[-1].phase, facts.ranks[-1].phase_seconds, facts.ranks[-1].lag_seconds) == (
        "backward",
        5.25,
        None,
    )
    assert facts.runs[0].step_seconds is None


def test_coordinates(pages: Any, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rank says its coordinates, there is a column of them, in the words of the alerts; else there is none."""
    monkeypatch.setenv("COLUMNS", "120")
    pages.text = GOLDEN
    assert "COORDINATES" not in top("--exporter", pages.url, "--once", "--interval", "0.2")[1]
    name = catalog.RANK_COORDINATES.name
    pages.text += f'{name}{{run="llama-7b",rank="0",pp="1",tp="",cp="",ep="",dp="5",fsdp=""}} 1\n'
    ranks = {(rank.run, rank.rank): rank.coordinates for rank in NodeSource(pages.url).fetch().ranks}
    assert ranks == {("llama-7b", 0): {"dp": 5, "pp": 1}, ("llama-7b", 1): {}, ('"quoted\\', 0): {}}
    text = top("--exporter", pages.url, "--once", "--interval", "0.2")[1]
    assert re.search(r"\n +RANK STATE .* GPU COORDINATES +PHASE ", text)
    assert re.search(r"\n +0 running .* dp 5, pp 1 +backward ", text)
    assert re.search(r"\n. +1 dead .* - +- +", text)


def test_gpus(pages: Any) -> None:
    """Activity comes from cycle counters between two looks, throttling from the seconds held, trouble from failures."""
    uuid = re.search(r'uuid="([^"]+)"', CAPTURE)
    assert uuid is not None
    pages.text = ABOUT + CAPTURE
    source = NodeSource(pages.url)
    source.fetch()

    def risen(name: str, by: float, label: str = "") -> None:
        found = re.search(rf'tachograph_{name}{{gpu="0",[^}}]*{label}[^}}]*}} (\S+)\n', pages.text)
        assert found is not None, name
        pages.text = pages.text.replace(found[0], found[0].replace(f" {found[1]}\n", f" {float(found[1]) + by!r}\n"))

    risen("gpu_sm_cycles_total", 1e9)
    risen("gpu_sm_active_cycles_total", 0.75e9)
    risen("gpu_tensor_active_cycles_total", 0.25e9)
    risen("gpu_clock_event_seconds_total", 1e6, 'reason="hw_thermal_slowdown"')
    pages.text += f'tachograph_gpu_unavailable_info{{gpu="0",uuid="{uuid[1]}",reason="reset_required"}} 1\n'
    gpu = source.fetch().gpus[0]
    assert (gpu.gpu, gpu.uuid, gpu.trouble) == ("0", uuid[1], ("reset required",))
    assert (gpu.sm_active, gpu.tensor_active) == pytest.approx((0.75, 0.25))
    assert gpu.throttling["thermal"] == 1.0
    assert gpu.name.startswith("NVIDIA")
    assert gpu.memory_total_bytes is not None
    assert gpu.temperature_celsius is not None


def rank_page(steps: float, progress: float, entered: dict[int, int], attempt: int = 0) -> str:
    """Return a page of two ranks that spoke of a step."""
    lines = [ABOUT]
    for rank, number in entered.items():
        own = f'run="r",rank="{rank}"'
        lines += [
            f'tachograph_rank_info{{{own},local_rank="{rank}",world_size="2",attempt="{attempt}",gpu="",uuid=""}} 1\n',
            f'tachograph_rank_state{{{own},state="running"}} 1\n',
            f"tachograph_rank_progress_timestamp_seconds{{{own}}} {progress}\n",
            f"tachograph_train_steps_total{{{own}}} {steps}\n",
            f"tachograph_train_tokens_total{{{own}}} {steps * 100}\n",
            f'tachograph_train_collective_enqueued{{{own},group="0"}} {number}\n',
        ]
    return "".join(lines)


def test_who_is_waited_for(pages: Any) -> None:
    """When no rank moves on, the one that entered fewer collectives is marked; while they move, nobody is."""
    source, now = NodeSource(pages.url), time.time()
    pages.text = rank_page(5, now, {0: 9, 1: 9})
    source.fetch()
    pages.text = rank_page(5, now, {0: 10, 1: 9})
    assert [rank.marks for rank in source.fetch().ranks] == [(), ()]
    first, second = source.fetch().ranks
    assert (first.rank, first.marks, first.cause) == (1, ("behind",), "1 collective behind")
    assert second.marks == ()


def test_who_is_behind_and_waits_is_a_victim(pages: Any) -> None:
    """Of the ranks that are behind, those that wait themselves are not blamed: as in the alert rules."""
    source, now = NodeSource(pages.url), time.time()
    phases = {0: "collective", 1: "backward", 2: "data"}
    pages.text = rank_page(5, now, {0: 10, 1: 9, 2: 9}) + "".join(
        f'tachograph_rank_phase_seconds{{run="r",rank="{rank}",phase="{phase}"}} 9\n' for rank, phase in phases.items()
    )
    source.fetch()
    assert [(rank.rank, rank.marks) for rank in source.fetch().ranks] == [(2, ("behind",)), (0, ()), (1, ())]


def test_a_new_attempt_is_no_negative_rate(pages: Any) -> None:
    """Counters that began again give no rate until they have risen; after a minute without a step none is shown."""
    source, now = NodeSource(pages.url), time.time()
    for steps, progress, attempt in ((100, now - 20, 0), (110, now - 10, 0)):
        pages.text = rank_page(steps, progress, {0: 1, 1: 1}, attempt)
        (run,) = source.fetch().runs
    assert (run.step_seconds, run.tokens_per_second) == pytest.approx((1.0, 200.0))
    pages.text = rank_page(3, now, {0: 1, 1: 1}, attempt=1)
    assert source.fetch().runs[0].step_seconds is None
    still = NodeSource(pages.url)
    for steps, progress in ((100, now - 500), (110, now - 490)):
        pages.text = rank_page(steps, progress, {0: 1, 1: 1})
        (run,) = still.fetch().runs
    assert (run.step_seconds, run.tokens_per_second) == (None, 0.0)


@pytest.mark.parametrize("body", ["<html>hello</html>\n", "", "up 1\n", '{"status":"error"}'])
def test_what_is_no_exporter(pages: Any, top: Top, body: str) -> None:
    """Anything but an exporter at that address is reported in one line, with status 1."""
    pages.text = body
    status, out, error = top("--exporter", pages.url, "--once")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("tachograph top: ")
    assert "--exporter names another" in error


def test_nobody_answers(top: Top) -> None:
    """Without an exporter: what was tried, why it failed and what to check, in one line, status 1."""
    status, out, error = top("--exporter", "127.0.0.1:1", "--json")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("tachograph top: no exporter at http://127.0.0.1:1: Connection refused;")
    assert top("--exporter", "http://node:port")[0] == 1


def test_addresses() -> None:
    """A node's name is enough, and the default port is the exporter's."""
    assert DEFAULT_PORT == EXPORTERS_PORT
    assert exporter_url("node-27") == f"http://node-27:{EXPORTERS_PORT}/metrics"
    assert exporter_url("node-27:99") == "http://node-27:99/metrics"
    assert exporter_url("[::1]:99") == "http://[::1]:99/metrics"
    assert exporter_url("https://proxy/node-27/metrics") == "https://proxy/node-27/metrics"
