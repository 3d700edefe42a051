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
from tachograph.node.ranks.frames import Bye
from tachograph.node.samples import GpuIdentity, Sample
from tachograph.servers.server_address import DEFAULT_PORT, exporter_url
from tachograph.top.exporter_page import ExporterPage
from tachograph.top.node_source import NodeSource
from tests.schemas import conforms

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = (ROOT / "tests/node/golden/node.prom").read_text(encoding="utf-8")
CAPTURE = (ROOT / "tests/captures/made-up-h100__580.95.05.prom").read_text(encoding="utf-8")
NOTHING = {"version": 1, "time": 1.0, "runs": [], "gpus": [], "unreadable": "", "problems": []}

Top = Callable[..., tuple[int, str, str]]


def train(exporter: Any, source: NodeSource) -> None:
    """Let four ranks say two times that they train, steps of half a second, 10 apart; rank 2 waits least."""
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
    """Rates are those of the running ranks; the rank that waits least is a straggler, after the dead one."""
    source = NodeSource(exporter.url)
    train(exporter, source)
    exporter.speakers[3].close()
    exporter.eventually(lambda: exporter.scrape().value("rank_state", run="llama-7b", rank=3, state="dead") == 1)
    facts = source.fetch()
    (run,) = facts.runs
    assert (run.name, run.state, run.step, run.loss, run.world_size) == ("llama-7b", "dead", 500, 2.5, 4)
    assert run.ranks == {"running": 3, "dead": 1}
    assert run.step_seconds == pytest.approx(0.5)
    assert run.tokens_per_second == pytest.approx(3 * 200)
    assert [rank.rank for rank in facts.ranks] == [3, 2, 0, 1]
    late = facts.ranks[1]
    assert (late.marks, late.phase) == (("straggler",), "data")
    assert (late.lag_seconds, late.wait_seconds, late.lag_ratio) == pytest.approx((0.18, 0.02, 0.36))
    exporter.eventually(lambda: " ".join(source.fetch().notes).startswith("GPUs cannot be read: no NVIDIA driver"))


def test_once_and_json(exporter: Any, top: Top) -> None:
    """One picture on no terminal is plain text of all rows; --json has the same facts; both end with status 0."""
    status, text, error = top("--exporter", exporter.url, "--once", "--interval", "0.2")
    assert (status, error) == (0, "")
    assert text.isprintable() is False
    assert "\x1b" not in text
    assert " DEAD  llama-7b  3 of 4 ranks up, " in text
    assert re.search(r"\n▌ +3 dead ", text)
    status, out, _ = top("--exporter", exporter.url.removeprefix("http://"), "--json", "--interval", "0.2")
    facts = conforms("top", out)
    assert (status, facts["view"], facts["source"], len(facts["ranks"])) == (0, "node", exporter.url, 4)
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


def test_what_is_wrong_comes_first(played: Any, top: Top) -> None:
    """In the words of the status page, the worst first, each with what usually helps."""
    played.table.greet("a", run="llama-7b")
    played.table.tell("a", metrics={"loss": "NaN"}, notices=["step.log(los=…) is dropped: did you mean loss?"])
    played.serve()
    first, second = NodeSource(played.pages.url).fetch().problems
    assert (first.text, first.kind, first.urgent) == ("Rank 0 of run llama-7b: the loss is NaN.", "Loss", True)
    assert second.text == "Rank 0 of run llama-7b: step.log(los=…) is dropped: did you mean loss?"
    lines = top("--exporter", played.pages.url, "--once", "--interval", "0.2")[1].splitlines()
    assert lines[0] == f" LOSS  {first.text}"
    expected = f" LOSS  {first.text} → {first.remedy} MISUSE  {second.text}"
    assert "".join("".join(lines).split()).startswith("".join(expected.split()))  # a narrow terminal wraps them


def test_one_rank_that_has_been_in_its_loader_for_40_seconds(played: Any, top: Top) -> None:
    """A step usually takes 0.05 s: that is overdue, and said in words, long before a page."""
    played.one_slow_load(40.0)
    text = top("--exporter", played.pages.url, "--once", "--interval", "0.2")[1]
    assert " OVERDUE 40 s  r  1 of 1 rank up" in text
    assert text.startswith(
        " NO STEP  Run r: no step for 40 s, usually 50 ms; rank 0 in data for 40 s.\n   → py-spy dump"
    )
    (run,) = NodeSource(played.pages.url).fetch().runs
    assert (run.step_seconds, run.progress_seconds, run.state_seconds) == (None, 40.0, 40.0)


@pytest.mark.parametrize(("seconds", "said"), [(1.0, False), (2.9, False), (3.5, True)])
def test_a_step_that_is_not_late_has_no_age(seconds: float, said: bool, played: Any, top: Top) -> None:
    """A node is read once a second: of steps of 50 ms, "last step 1 s ago" would say nothing."""
    played.one_slow_load(seconds)
    text = top("--exporter", played.pages.url, "--once", "--interval", "0.2")[1]
    assert "step 100" in text
    assert ("last step" in text) == said


def test_on_a_narrow_terminal_a_problem_is_wrapped(played: Any, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its end has the process and the line: it is not cut."""
    played.one_slow_load(40.0)
    monkeypatch.setenv("COLUMNS", "50")
    lines = top("--exporter", played.pages.url, "--once", "--interval", "0.2")[1].splitlines()
    assert lines[:4] == [
        " NO STEP  Run r: no step for 40 s, usually 50 ms;",
        "   rank 0 in data for 40 s.",
        "   → py-spy dump --pid 4242 shows where rank 0",
        "   stands: https://github.com/tachograph/tachogra",
    ]


def test_several_runs(played: Any) -> None:
    """They come worst first; a rank that holds its run up comes before its victims; what is absent stays unknown."""
    wall = played.hand.clock.wall()
    entered = {0: 10, 1: 9, 2: 10}
    for rank, number in entered.items():
        played.table.greet(rank, rank=rank, world_size=3)
        metrics = {"steps_total": 9, "phase_seconds_total": {"forward": 9.0}, "collective_enqueued": {"0": number}}
        phase = "data" if rank == 1 else "collective"
        played.table.tell(rank, metrics=metrics, time=wall, phase=phase, phase_since=wall, progress_time=wall)
    played.table.greet("x", run='"quoted\\')
    played.hand.turn(60.0)
    for rank in (*entered, "x"):
        played.table.heard(rank)
    played.table.lost("x")
    played.serve()
    facts = NodeSource(played.pages.url).fetch()
    assert [(run.name, run.state, run.state_seconds) for run in facts.runs] == [
        ("r", "hung", 60.0), ('"quoted\\', "dead", None)
    ]  # fmt: skip
    assert [(rank.run, rank.rank, rank.word) for rank in facts.ranks] == [
        ("r", 1, "culprit"), ('"quoted\\', 0, "dead"), ("r", 0, "stalled"), ("r", 2, "stalled"),
    ]  # fmt: skip
    culprit, dead = facts.ranks[:2]
    assert (culprit.cause, culprit.phase, culprit.phase_seconds) == ("1 collective behind", "data", 60.0)
    assert (dead.phase, dead.phase_seconds, dead.lag_seconds, dead.step) == ("", None, None, None)
    assert (facts.runs[1].step_seconds, facts.runs[1].tokens_per_second) == (None, None)


def test_coordinates(played: Any, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where a rank says its coordinates, there is a column of them, in the words of the alerts; else there is none."""
    monkeypatch.setenv("COLUMNS", "120")
    where = ("--exporter", played.pages.url, "--once", "--interval", "0.2")
    played.table.greet(1, rank=1)
    played.serve()
    assert "COORDINATES" not in top(*where)[1]
    played.table.greet(0, rank=0, coordinates={"pp": 1, "dp": 5})
    played.serve()
    ranks = {rank.rank: rank.coordinates for rank in NodeSource(played.pages.url).fetch().ranks}
    assert ranks == {0: {"dp": 5, "pp": 1}, 1: {}}
    text = top(*where)[1]
    assert re.search(r"\n +RANK STATE .* GPU COORDINATES +PHASE ", text)
    assert re.search(r"\n +0 running .* dp 5, pp 1 +", text)
    assert re.search(r"\n +1 running .* - +- +", text)


def readings(**own: float) -> list[Sample]:
    """Return the GPU readings of the capture, those of GPU 0 in some families replaced."""
    page, rows = ExporterPage(CAPTURE), {metric.name: metric for metric in catalog.METRICS}
    read = [
        Sample(rows[each.name], tuple(each.labels[label] for label in rows[each.name].labels), each.value)
        for metric in catalog.METRICS
        for each in page.of(metric)
        if metric.labels[:2] == ("gpu", "uuid")
    ]
    return [
        sample._replace(value=own.get(sample.metric.name.removeprefix("tachograph_"), sample.value))
        if sample.labels[0] == "0"
        else sample
        for sample in read
    ]


def test_gpus(played: Any) -> None:
    """Throttling comes from the seconds held between two looks, trouble from failures; the rest is as it was read."""
    source, held = NodeSource(played.pages.url), catalog.GPU_CLOCK_EVENT_SECONDS
    gpus = [
        GpuIdentity(s.labels["gpu"], s.labels["uuid"], s.labels["name"])
        for s in ExporterPage(CAPTURE).of(catalog.GPU_INFO)
    ]
    first = readings(gpu_sm_active_ratio=0.75, gpu_tensor_active_ratio=0.25)
    for rank in range(2):
        played.table.greet(rank, rank=rank, uuid=gpus[0].uuid)
    played.table.bye(0, Bye(v=1, outcome="finished"))
    played.serve(gpus, first)
    assert not source.fetch().gpus[0].throttling.get("thermal")
    played.hand.turn(8.0)
    hot = (gpus[0].index, gpus[0].uuid, "hw_thermal_slowdown")
    before = next(sample.value for sample in first if sample.metric is held and sample.labels == hot)
    lost = Sample(catalog.GPU_UNAVAILABLE, (*hot[:2], "reset_required"), 1)
    xid = Sample(catalog.GPU_XID_INFO, (*hot[:2], "48", "reset", "uncorrectable ECC error"), 1)
    played.serve(gpus, [*first, Sample(held, hot, before + 2.0), lost, xid])
    played.table.heard(1)
    found = source.fetch()
    gpu = found.gpus[0]
    assert (found.notes, gpu.ranks) == ((), (1,))
    assert (gpu.gpu, gpu.uuid, gpu.name) == ("0", gpus[0].uuid, "NVIDIA H100 80GB HBM3")
    assert gpu.trouble == ("reset required", "had Xid 48 (uncorrectable ECC error): reset")
    assert gpu.throttling["thermal"] == pytest.approx(0.25)
    assert (gpu.sm_active, gpu.tensor_active, gpu.utilization) == (0.75, 0.25, 0.96)
    assert gpu.memory_total_bytes == 85_520_809_984
    assert gpu.temperature_celsius is not None
    assert gpu.power_limit_watts is not None


def test_a_rank_that_stands_still_says_where(played: Any, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its line and its process, among what is wrong with it."""
    monkeypatch.setenv("COLUMNS", "160")
    wall = played.hand.clock.wall()
    played.table.greet("a")
    played.table.tell("a", 1, phase="data", phase_since=wall, time=wall, where="data.py:88 load_shard")
    played.serve()
    assert "at data.py:88 load_shard (pid 4242)" in top("--exporter", played.pages.url, "--once")[1]


def test_layers_that_a_rank_sends(played: Any, top: Top, monkeypatch: pytest.MonkeyPatch) -> None:
    """Below the loss, the one furthest above its usual norm first; of a run that sends none there is no line."""
    monkeypatch.setenv("COLUMNS", "120")
    played.table.greet("a", run="llama-7b")
    played.table.greet("b", rank=1, run="llama-7b")
    norms = {"model.layers.3": 0.3, "model.layers.17": 2.8, "lm_head": "NaN"}
    sent = {"layer_grad_norm": norms, "layer_grad_ratio": {"model.layers.3": 1.1, "model.layers.17": 9.2}}
    played.table.tell("a", metrics={"loss": 2.5, **sent, "layer_activation_rms": {"model.layers.3": 0.7}})
    played.table.tell("b", metrics={"loss": 2.5})
    played.serve()
    first, second, third = NodeSource(played.pages.url).fetch().runs[0].layers
    assert (first.layer, first.grad_norm, first.grad_ratio, first.activation_rms) == ("model.layers.17", 2.8, 9.2, None)
    assert (second.layer, second.activation_rms, third.layer) == ("model.layers.3", 0.7, "lm_head")
    _, text, _ = top("--exporter", played.pages.url, "--once", "--interval", "0.2")
    assert "\n layers model.layers.17 norm 2.80 (9.2 ×) · model.layers.3 norm 0.300 (1.1 ×), output 0.700 · " in text
    conforms("top", top("--exporter", played.pages.url, "--json", "--interval", "0.2")[1])
    conforms("api-node", played.pages.judged)
    played.table.tell("a", metrics={"loss": 2.5})
    played.serve()
    assert " layers " not in top("--exporter", played.pages.url, "--once", "--interval", "0.2")[1]


def test_a_new_process_is_no_negative_rate(played: Any) -> None:
    """Counters that began again are compared with their own past; a run that is overdue makes no tokens."""
    source = NodeSource(played.pages.url)

    def look(steps: int, seconds: float, tokens: int) -> Any:
        played.hand.turn(seconds)
        wall = played.hand.clock.wall()
        metrics = {
            "steps_total": steps, "tokens_total": tokens, "flops_total": 2e9 * tokens,
            "phase_seconds_total": {"forward": steps}, "checkpoint_timestamp_seconds": wall - 7.0,
        }  # fmt: skip
        played.table.tell("a", steps, metrics=metrics, progress_time=wall, time=wall)
        played.serve()
        return source.fetch().runs[0]

    played.table.greet("a", facts={"peak_flops": 1e12})
    assert look(100, 0.0, 10_000).tokens_per_second == pytest.approx(100.0)
    run = look(110, 10.0, 13_000)  # its batches have grown
    assert (run.step_seconds, run.tokens_per_second, run.mfu) == pytest.approx((1.0, 300.0, 0.6))
    assert run.checkpoint_seconds == pytest.approx(7.0)
    played.hand.turn(30.0)
    played.table.heard("a")
    played.serve()
    late = source.fetch().runs[0]
    assert (late.state, late.step_seconds, late.tokens_per_second) == ("hung", None, 0.0)
    played.table.lost("a")
    played.table.greet("a", played.table.OTHER)
    assert look(3, 1.0, 300).tokens_per_second == pytest.approx(100.0)
    assert look(103, 100.0, 5_300).tokens_per_second == pytest.approx(5_300 / 103)


@pytest.mark.parametrize("body", ["<html>hello</html>\n", "", "up 1\n", '{"status":"error"}'])
def test_what_is_no_exporter(pages: Any, top: Top, body: str) -> None:
    """Anything but an exporter at that address is reported in one line, with status 1."""
    pages.judged = body
    status, out, error = top("--exporter", pages.url, "--once")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("tachograph top: ")
    assert "--exporter names another" in error


@pytest.mark.parametrize(
    "judged",
    ["", "[]", "{}", json.dumps(NOTHING | {"version": 2}), json.dumps(NOTHING | {"runs": [{}]})],
)
def test_an_exporter_that_concludes_nothing_we_know(played: Any, top: Top, judged: str) -> None:
    """Another answer to /api/node than that of version 1 is reported in one line, too."""
    played.pages.judged = json.dumps(NOTHING)
    assert top("--exporter", played.pages.url, "--once", "--interval", "0.2")[0] == 0
    played.pages.judged = judged
    status, out, error = top("--exporter", played.pages.url, "--once")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert "is not an answer from a tachograph exporter" in error


def test_nobody_answers(top: Top) -> None:
    """Without an exporter: what was tried, why it failed and what to check, in one line, status 1."""
    status, out, error = top("--exporter", "127.0.0.1:1", "--json")
    assert (status, out, error.count("\n")) == (1, "", 1)
    assert error.startswith("tachograph top: no exporter at http://127.0.0.1:1: Connection refused;")
    assert top("--exporter", "http://node:port")[0] == 1


def test_addresses() -> None:
    """A node's name is enough, and the default port is the exporter's."""
    assert exporter_url("node-27") == f"http://node-27:{DEFAULT_PORT}/metrics"
    assert exporter_url("node-27:99") == "http://node-27:99/metrics"
    assert exporter_url("[::1]:99") == "http://[::1]:99/metrics"
    assert exporter_url("https://proxy/node-27/metrics") == "https://proxy/node-27/metrics"


def test_a_loop_that_generates(exporter: Any) -> None:
    """What its steps go into, of the median rank here."""
    phases = {"generate": 4.0, "reward": 0.5, "forward": 0.25, "backward": 0.5, "data": 0.125}
    for rank, longer in enumerate((0.0, 0.0, 8.0)):
        speaker = exporter.speaker("rl", rank)
        assert speaker.hello(world_size=3)["ok"]
        said = phases | {"generate": phases["generate"] + longer}
        metrics = {
            "steps_total": 8,
            "recent_step_seconds": 1.0,
            "recent_wait_seconds": 1.0,
            "recent_phase_seconds": said,
        }
        speaker.state(metrics, step=8, phase="forward", phase_since=time.time(), progress_time=time.time())
        exporter.eventually(lambda rank=rank: exporter.scrape().value("train_step", run="rl", rank=rank) == 8)
    run = next(run for run in NodeSource(exporter.url).fetch().runs if run.name == "rl")
    assert run.parts_seconds == {"generate": 4.0, "reward": 0.5, "update": 0.75, "idle": 1.125}
