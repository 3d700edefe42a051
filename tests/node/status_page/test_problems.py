"""The status page's problems: worst first, in words, and never more than fit on a page."""

from __future__ import annotations

import asyncio
import re
import time
import urllib.request
from collections.abc import Callable
from html.parser import HTMLParser
from importlib.resources import files
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.ranks import rank_ends
from tachograph.node.ranks.frames import Bye, Event, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import GpuIdentity, GpuSnapshot, Sample
from tachograph.node.status_page.page import RANKS_SHOWN, RUNS_SHOWN, Sections, status_page
from tachograph_lab.processes import answers, free_port

GPUS = [GpuIdentity(str(i), f"GPU-{i:08d}-1111-2222-3333-444444444444", "NVIDIA H100 80GB HBM3") for i in range(8)]


class Text(HTMLParser):
    """The text of a page, its list items without their remedies, and headings apart."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.items: list[str] = []
        self.headings: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self._in = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "li":
            self.items.append("")
            self._in = "li"
        if tag == "span" and dict(attrs).get("class") == "why":
            self._in = ""  # the last of its item
        if re.fullmatch("h[1-6]", tag):
            self.headings.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag == self._in:
            self._in = ""

    def handle_data(self, data: str) -> None:
        if self._in == "li":
            self.items[-1] += data


class Node:
    """A node whose ranks are spoken for by hand."""

    def __init__(self, hand: Any, facts: Any, limits: Limits | None = None) -> None:
        self.hand = hand
        self.table = RankTable(limits or Limits(), hand.clock, facts)
        self.seq = 0

    def hello(self, rank: int, run: str = "llama-7b", **facts: Any) -> None:
        self.table.hello(
            (run, rank), Hello(v=1, run=run, rank=rank, world_size=max(64, rank + 1), **facts), Peer(0, 1 + rank)
        )

    def say(
        self, rank: int, run: str = "llama-7b", phase: str = "backward", wait: float | None = None, **metrics: Any
    ) -> None:
        """Have a rank speak: in its phase, of steps of a second, of which it waits a share."""
        wall = self.hand.clock.wall()
        recent = {} if wait is None else {"recent_step_seconds": 1.0, "recent_wait_seconds": wait}
        self.table.state(
            (run, rank),
            State(v=1, seq=self.seq, time=wall, step=self.seq, phase=phase, phase_since=wall - 0.2,
                  progress_time=metrics.pop("progress", wall), progress_seconds=metrics.pop("made", None),
                  notices=metrics.pop("notices", None), metrics=metrics),
        )  # fmt: skip
        speaker = next(each for each in self.table.ranks() if each.key == (run, str(rank)))
        speaker.series.gauges |= {key: {"": value} for key, value in recent.items()}

    def second(self, **waits: float) -> None:
        """Let a second pass, of whose steps ranks r0, r1, … waited so much."""
        for rank, wait in waits.items():
            self.say(int(rank[1:]), wait=wait)
        self.seq += 1
        self.hand.turn(1.0, self.table.tick)
        for link in [rank.link for rank in self.table.ranks() if rank.link is not None]:
            self.table.heard(link)

    def page(self, gpus: Any = (), snapshot: GpuSnapshot | None = None) -> str:
        return status_page(self.judged(gpus, snapshot), self.table, {"State": "ready"}, Sections(self.hand.clock))

    def judged(self, gpus: Any = (), snapshot: GpuSnapshot | None = None, **reader: bool) -> NodeAnswer:
        return NodeAnswer("node-27", self.table, gpus, snapshot, self.hand.clock, **reader)

    def problems(self, *given: Any) -> list[str]:
        return [" ".join(item.split()) for item in Text(self.page(*given)).items]


@pytest.fixture
def node(hand: Any, two_gpus: Any) -> Node:
    return Node(hand, two_gpus)


def test_all_is_well(node: Node) -> None:
    """Where nothing is wrong the page says so, and what it has seen: silence would mean nothing."""
    for rank in range(3):
        node.hello(rank)
    for _ in range(3):
        node.second(r0=0.2, r1=0.22, r2=0.21)
    html = node.page()
    assert Text(html).items == []
    assert "3 of 3 ranks running" in html
    assert "<title>node-27</title>" in html


def test_a_misuse_is_told_once_for_all_ranks(node: Node) -> None:
    """Misuse of the recorder is listed last, shortened and escaped, even after the run has finished."""
    for rank in range(2):
        node.hello(rank)
        node.say(rank, notices=["step.log(los=…) is dropped: did you mean loss?"])
    node.hello(2)
    node.say(2, notices=["<b>\u202e" + "x" * 10_000, 5, *("more" for _ in range(10))])
    first, second, third = node.problems()
    assert first == "Misuse Ranks 0, 1 of run llama-7b: step.log(los=…) is dropped: did you mean loss?"
    assert second.startswith("Misuse Rank 2 of run llama-7b: <b>?xxx")
    assert len(second) < 250
    assert third == "Misuse Rank 2 of run llama-7b: more"
    assert node.table.dropped["wrong_type"] == 7
    node.table.bye(("llama-7b", 0), Bye(v=1, outcome="finished"))
    assert node.problems()[0] == first


def test_a_misuse_may_hold_a_secret(node: Node) -> None:
    """Its words are the script's: they are withheld as failure reasons are, and what looks like a key is removed."""
    node.hello(0)
    node.say(0, notices=["phase('token=abcdef') is dropped"])
    (line,) = node.problems()
    assert "abcdef" not in line
    page = status_page(node.judged(may_read=lambda _: False), node.table, {}, Sections(node.hand.clock))
    assert "phase(" not in page
    assert "shown to the run" in page


@pytest.mark.parametrize("metrics", [5, [], {"load": 5}, {"load": "x" * 201}, {"": "text"}, {"a\nb": "text"}])
def test_a_wrong_description_costs_itself(node: Node, metrics: Any) -> None:
    """The hello stands; what it says of metrics is left out and counted."""
    node.hello(0, metrics=metrics)
    node.say(0, custom={"load": 1.5})
    assert "Its own metrics" not in node.page()
    assert node.table.dropped["wrong_type"] == 1


def test_a_runs_own_metrics_are_described(node: Node) -> None:
    """With the lowest and the highest of the ranks here, at most sixteen; a NaN is not hidden by the others."""
    described = {"expert_load": "Tokens per <expert>", "gate": "Gate entropy", "unlogged": "Not logged yet"}
    for rank in range(3):
        node.hello(rank, metrics=described)
        node.say(rank, custom={"expert_load": 1.0 + rank, "gate": "NaN" if rank == 1 else 0.5, "undeclared": 1.0})
    node.hello(3, run="many", metrics={f"metric_{number}": "" for number in range(20)})
    html = node.page()
    shown = re.findall(r'data-name="(?:Metric|Lowest|Highest|Meaning)">(.*?)</t', html)
    assert shown[:4] == ["expert_load", "1.000", "3.000", "Tokens per &lt;expert&gt;"]
    assert "NaN" in shown[5]
    assert "undeclared" not in html
    assert html.count(">metric_") == 16
    assert node.table.dropped["wrong_type"] == 4


def test_ends_and_silence_are_told_once_for_all_ranks(node: Node) -> None:
    """Twenty dead ranks are one line that names the first; the title counts the lines."""
    for rank in range(23):
        node.hello(rank)
    node.table.bye(("llama-7b", 20), Bye(v=1, outcome="failed", category="oom", message="<out> of memory"))
    node.table.lost(("llama-7b", 4))
    node.hand.turn(3.0, node.table.tick)
    for rank in range(20):
        node.table.lost(("llama-7b", rank))
    node.hand.turn(12.0, node.table.tick)
    node.table.heard(("llama-7b", 22))
    assert node.problems() == [
        "Rank dead Ranks 0, 1, 2, 3, 4, 5 and 14 more of run llama-7b died, rank 4 first, 15 s ago without giving a "
        "reason: see the kernel log.",
        "Rank failed Rank 20 of run llama-7b failed 15 s ago: oom: <out> of memory",
        "Rank frozen Rank 21 of run llama-7b has sent nothing for 15 s over an open connection: stopped, or stuck in "
        "the kernel.",
    ]
    assert "<title>3 problems – node-27</title>" in node.page()


def test_what_ended_a_while_ago_comes_last(node: Node) -> None:
    """For five minutes a death comes before what is late in another run, then after it."""
    for rank in range(3):
        node.hello(rank)
    node.hello(0, run="old")
    for _ in range(5):
        node.second(r0=0.4, r1=0.02, r2=0.4)
    (dead,) = (rank for rank in node.table.ranks() if rank.key[0] == "old")
    node.table.lost(dead.link)
    node.second(r0=0.4, r1=0.02, r2=0.4)
    assert [line[:9] for line in node.problems()] == ["Rank dead", "Late rank"]
    for _ in range(305):
        node.second(r0=0.4, r1=0.02, r2=0.4)
    assert [line[:9] for line in node.problems()] == ["Late rank", "Rank dead"]


@pytest.mark.parametrize(
    ("lines", "states", "text"),
    [
        (["data.py:88 load"], ["R (running)"], "pid 1, keeps Python's lock at data.py:88 load."),
        (["", "data.py:88 load"], ["", ""], "rank 1, pid 2, keeps Python's lock at data.py:88 load."),
        ([""], ["T (stopped)"], "stopped (pid 1, T (stopped))."),
        (["", ""], ["T (stopped)", "T (stopped)"], "stopped."),
        ([""], ["D (disk sleep)"], "stopped, or stuck in the kernel (pid 1, D (disk sleep))."),
    ],
)
def test_what_keeps_a_silent_rank(node: Node, lines: list[str], states: list[str], text: str) -> None:
    """The line at which it holds Python's lock, else the state of its process, as far as they are known."""
    for rank, (line, state) in enumerate(zip(lines, states, strict=True)):
        node.hello(rank)
        found = next(each for each in node.table.ranks() if each.hello.rank == rank)
        found.watch_process(None)
        found._process = SimpleNamespace(look=lambda: None, where=line, state=state)
    node.hand.turn(15.0, node.table.tick)
    (problem,) = node.problems()
    assert problem.endswith(f"sent nothing for 15 s over an open connection: {text}")


def test_an_exit_code_is_a_reason(node: Node) -> None:
    """A rank that left with an exit code failed for it, whether it said so or the exporter saw it afterwards."""
    for rank in range(2):
        node.hello(rank)
    code = {"category": "exit_code", "message": "exit code 1 after ValueError: mine", "exit_code": 1}
    node.table.bye(("llama-7b", 0), Bye(v=1, outcome="failed", **code))
    node.hand.turn(3.0, node.table.tick)
    assert node.problems() == [
        "Rank failed Rank 0 of run llama-7b failed 3.0 s ago: exit code 1 after ValueError: mine",
    ]
    finished = node.table.bye(("llama-7b", 1), Bye(v=1, outcome="finished"))
    rank_ends.exited(finished, 3 << 8, decides=True)
    assert finished.end_note == "exit code 3"
    assert node.problems()[0].startswith("Rank failed Ranks 0, 1 of run llama-7b failed, rank 0 first, 3.0 s ago")


def test_ranks_that_were_asked_to_end_have_not_failed(node: Node) -> None:
    """Who sent the signal is the question, not what their logs say; one that failed by itself is named alone."""
    for rank in range(3):
        node.hello(rank)
    told = {"category": "terminated", "message": "signal 15 (SIGTERM)"}
    node.table.bye(("llama-7b", 0), Bye(v=1, outcome="failed", **told))
    node.hand.turn(3.0, node.table.tick)
    assert node.problems() == [
        "Ended Rank 0 of run llama-7b was asked to end 3.0 s ago: terminated: signal 15 (SIGTERM)"
    ]
    assert "who sent the signal" in node.page()
    node.table.bye(("llama-7b", 1), Bye(v=1, outcome="failed", category="interrupted", message="signal 2 (SIGINT)"))
    assert node.problems()[0].startswith("Ended Ranks 0, 1 of run llama-7b were asked to end, rank 0 first, 3.0 s ago")
    node.table.bye(("llama-7b", 2), Bye(v=1, outcome="failed", category="oom", message="out of memory"))
    assert node.problems()[0] == "Rank failed Rank 2 of run llama-7b failed 0.0 s ago: oom: out of memory"


def states(node: Node) -> list[str]:
    """Return look and word of each rank's state."""
    return [" ".join(found) for found in re.findall(r'"State"><span class="state (\w+)">([^<]+)<', node.page())]


def test_who_waits_least_arrives_last(node: Node) -> None:
    """The rank that the others wait for is named, and its lag stands in its row."""
    for rank in range(4):
        node.hello(rank)
    for _ in range(5):
        node.second(r0=0.4, r1=0.02, r2=0.41, r3=0.4)
    (line,) = node.problems()
    assert (
        line == "Late rank Rank 1 of run llama-7b arrives last: it waits 2% of the time, the others here 40% (pid 2)."
    )
    assert 'data-name="Lags">38%<' in node.page()
    assert states(node) == ["good running", "warn straggler", "good running", "good running"]
    assert " here, 1.00 s a step</span></caption>" in node.page()


def test_a_stall_names_the_rank_that_is_behind(node: Node) -> None:
    """Of a run that makes no step: who lacks a collective, else who is in a phase of its own, else that none does."""
    for rank in range(3):
        node.hello(rank)
    start = node.hand.clock.wall()

    def stand(odd: str, **metrics: Any) -> list[str]:
        node.seq += 1
        for rank in range(3):
            entered = {"collective_enqueued": {"0": 812 - (rank == 1)}} if metrics else {}
            steps = {"steps_total": 100, "phase_seconds_total": {"backward": 50.0, "init": 900.0}}
            node.say(rank, phase=odd if rank == 1 else "collective", progress=start, **entered, **steps)
            node.table.heard(("llama-7b", rank))
        return node.problems()

    node.hand.turn(9.0)
    assert stand("data") == []
    node.hand.turn(7.0)
    assert stand("data")[0].startswith("No step Run llama-7b: no step for 16 s, usually 500 ms; rank 1 is not where")
    node.hand.turn(26.0)
    assert stand("data", seen=True) == [
        "No step Run llama-7b: no step for 42 s, usually 500 ms; rank 1 is 1 collective behind the others here, in "
        "data for 0.2 s."
    ]
    assert states(node) == ["warn stalled", "bad culprit", "warn stalled"]
    assert '<a href="/blackbox/llama-7b">Black box</a></caption>' in node.page()
    assert "rank 1 is not where the others are, in data for" in stand("data")[0]
    assert "no rank here stands out, all are in collective; the cause may be on another node." in stand("collective")[0]
    assert stand("checkpoint") == []


def test_a_run_sets_its_own_thresholds(node: Node) -> None:
    """Of two ranks the one that waits less is late; no longer where the run tolerates more, of lags and of stalls."""
    node.hello(0)
    node.hello(1)
    for _ in range(3):
        node.second(r0=0.4, r1=0.02)
    assert node.problems() == [
        "Late rank Rank 1 of run llama-7b arrives last: it waits 2% of the time, the others here 40% (pid 2)."
    ]
    node.hand.turn(70.0, node.table.tick)
    assert node.problems()[0].startswith("Rank frozen")

    def say(ago: float, **thresholds: float) -> list[str]:
        for rank, wait in enumerate((0.4, 0.02)):
            limits = thresholds if rank else {}
            at = node.hand.clock.wall() - ago
            node.say(rank, wait=wait, progress=at, made=ago, threshold=limits)
            node.table.heard(("llama-7b", rank))
        return node.problems()

    assert say(73.0)[0].startswith("No step Run llama-7b: no step for 73 s, usually 1.00 s;")
    assert say(73.0, hang_seconds=90.0)[0].startswith("No step Run llama-7b: no step for 73 s")  # no page, but a fact
    assert say(9.0, hang_seconds=90.0)[0].startswith("Late rank Rank 1")
    assert say(9.0, hang_seconds=90.0, straggler_ratio=0.5) == []


def test_the_usual_remedy_stands_under_a_problem(node: Node) -> None:
    """What to do, or where to look, for a person who has the page alone."""
    node.hello(0)
    node.say(0, loss="NaN", nonfinite_step={"loss": 61})
    node.table.heard(("llama-7b", 0))
    assert node.problems() == ["Loss Rank 0 of run llama-7b: the loss has been NaN since step 61."]
    assert '<span class="why">→ restart from a checkpoint from before it, ' in node.page()


def test_values_that_are_not_finite(node: Node) -> None:
    """A loss that is NaN on one rank is a line of its own, beside the ranks that are well."""
    node.hello(0)
    node.hello(1)
    node.say(0, loss=2.5)
    node.say(1, loss="NaN")
    assert node.problems() == ["Loss Rank 1 of run llama-7b: the loss has been NaN since step 0."]


def test_a_broken_gpu_comes_before_the_rank_it_broke(node: Node) -> None:
    """Worst first: the GPU that is lost, the rank that died of it, then what is only slow or worn."""
    node.hello(0)
    node.table.lost(("llama-7b", 0))
    own = [(gpu.index, gpu.uuid) for gpu in GPUS]
    samples = (
        Sample(catalog.GPU_UP, own[0], 0), Sample(catalog.GPU_UNAVAILABLE, (*own[0], "lost"), 1),
        Sample(catalog.GPU_UP, own[1], 1), Sample(catalog.GPU_ECC_ERRORS, (*own[1], "uncorrected", "volatile"), 2),
        Sample(catalog.GPU_UP, own[2], 1), Sample(catalog.GPU_TEMPERATURE, (*own[2], "gpu"), 88.0),
        Sample(catalog.GPU_CLOCK_EVENT, (*own[2], "hw_thermal_slowdown"), 1),
        Sample(catalog.GPU_CLOCK_EVENT, (*own[3], "sw_power_cap"), 1),
        Sample(catalog.GPU_NVLINK_LINKS, own[3], 18), Sample(catalog.GPU_NVLINKS_DOWN, own[3], 1),
        Sample(catalog.GPU_NVLINK_ERROR_RATE, (*own[3], "recovery_failed"), 0.1),
        Sample(catalog.GPU_PCIE_SPEED, own[3], 0.5), Sample(catalog.GPU_PCIE_REPLAY_RATE, own[3], 0.5),
    )  # fmt: skip
    assert [
        line.split(".")[0] for line in node.problems(GPUS, GpuSnapshot(samples, 0.01, node.hand.now, True, ""))
    ] == [
        "GPU 0 Cannot be read: lost",
        "Rank dead Rank 0 of run llama-7b died 0",
        "GPU 2 Throttled at 88 °C: hw thermal slowdown",
        "GPU 3 1 of 18 NVLink links are down",
        "GPU 3 NVLinks report more errors than usual (recovery failed)",
        "GPU 3 The PCIe link is left with 50% of its speed",
        "GPU 3 The PCIe link resends 30 packets a minute",
        "GPU 1 2 uncorrected ECC errors since the driver was loaded",
    ]


def test_readings_that_fail_or_stand_still_are_told(node: Node) -> None:
    """Numbers of ten minutes ago look like numbers of now: their age is a line of its own."""
    assert node.problems(GPUS, GpuSnapshot((), 0.0, node.hand.now, False, "no driver: <lib>")) == [
        "GPUs No readings: no driver: <lib>"
    ]
    assert node.problems(GPUS, GpuSnapshot((), 0.0, node.hand.now - 29, True, "")) == []
    (line,) = node.problems(GPUS, GpuSnapshot((), 0.0, node.hand.now - 600, True, ""))
    assert line == "GPUs The readings below are 10 min old: a driver call has not returned."


def full_snapshot(now: float) -> GpuSnapshot:
    """Every reading of every GPU that the page shows."""
    samples = []
    for gpu in GPUS:
        own = (gpu.index, gpu.uuid)
        values: dict[Any, float] = {
            (catalog.GPU_UP,): 1, (catalog.GPU_UTILIZATION,): 1, (catalog.GPU_SM_ACTIVE,): 0.87,
            (catalog.GPU_TENSOR_ACTIVE,): 0.41, (catalog.GPU_MEMORY_USED,): 71 * 2**30, (catalog.GPU_POWER,): 655,
            (catalog.GPU_MEMORY_TOTAL,): 80 * 2**30, (catalog.GPU_POWER_LIMIT,): 700,
            (catalog.GPU_TEMPERATURE, "gpu"): 64, (catalog.GPU_TEMPERATURE, "memory"): 71,
            (catalog.GPU_CLOCK_EVENT, "sw_power_cap"): 1, (catalog.GPU_CLOCK_EVENT, "hw_thermal_slowdown"): 1,
        }  # fmt: skip
        samples += [Sample(key[0], (*own, *key[1:]), value) for key, value in values.items()]
    return GpuSnapshot(tuple(samples), 0.012, now, True, "")


def test_size(node: Node) -> None:
    """Eight ranks and eight GPUs, all in some trouble, are at most 60 KB."""
    for rank in range(8):
        node.hello(rank, uuid=f"GPU-{rank:08d}")
        node.say(rank, loss="NaN")
        node.table.state(
            ("llama-7b", rank), State(v=1, seq=9, time=1.0, events=[Event(id=1, kind="checkpoint_saved", time=1.0)])
        )
    size = len(node.page(GPUS, full_snapshot(node.hand.now)).encode())
    assert 10_000 < size < 60_000


HOSTILE = "<script>alert('\"&')</script>" + "&\U0001f4a5'\"" * 13
SHAPES: dict[str, tuple[int, Callable[[int], tuple[int, str]]]] = {
    "a thousand ranks of a run": (1000, lambda i: (i, HOSTILE)),
    "many runs": (200, lambda i: (0, f"{i}{HOSTILE}")),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_hostile_crowds(hand: Any, two_gpus: Any, shape: str) -> None:
    """The page stays small, says what it leaves out, and nothing that a rank said gets out of its quotes."""
    count, who = SHAPES[shape]
    node = Node(hand, two_gpus, Limits(ranks=count))
    for i in range(count):
        rank, run = who(i)
        node.hello(rank, run)
        node.table.bye(
            (run, rank), Bye(v=1, outcome="failed", category="<u>", message="<b>\u202e\x00\x1b[31m" + "'" * 300)
        )
    html = node.page()
    assert len(html.encode()) < 100_000
    for mark in ("<script", "<u>", "<b>", "\u202e", "\x00", "\x1b"):
        assert mark not in html
    assert f"{1000 - RANKS_SHOWN} not shown" in html or f"{200 - RUNS_SHOWN} runs more, not shown" in html
    assert len(Text(html).items) <= 12


def test_a_screen_reader_can_follow(node: Node) -> None:
    """Headings in order, each table with caption and scopes, nothing loaded from anywhere, no script."""
    node.hello(0)
    text = Text(node.page(GPUS, full_snapshot(node.hand.now)))
    levels = [int(heading[1]) for heading in text.headings]
    assert levels[0] == 1
    assert all(later - earlier <= 1 for earlier, later in pairwise(levels))
    tags = [tag for tag, _ in text.tags]
    assert tags.count("table") == tags.count("caption") == 2
    assert all(attributes.get("scope") in ("col", "row") for tag, attributes in text.tags if tag == "th")
    assert "script" not in tags
    for _, attributes in text.tags:
        for name in ("src", "href", "style"):
            assert not re.search(r"//|url\(", attributes.get(name) or "")


def luminance(colour: str) -> float:
    digits = colour.lstrip("#")
    digits = "".join(2 * digit for digit in digits) if len(digits) == 3 else digits
    parts = [int(digits[i : i + 2], 16) / 255 for i in (0, 2, 4)]
    linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("theme", [0, 1], ids=["light", "dark"])
def test_contrast(theme: int) -> None:
    """Every colour of text has at least 4.5:1 on every ground it stands on (WCAG 2.2, 1.4.3)."""
    css = (files("tachograph.node.status_page") / "style.css").read_text(encoding="utf-8")
    colours = dict(re.findall(r"--(\w+): (#\w+)", re.findall(r":root \{(.*?)\}", css, re.DOTALL)[theme]))
    for ink in ("ink", "soft", "good", "warn", "bad", "idle", "link"):
        for ground in ("page", "card"):
            one, other = sorted((luminance(colours[ink]), luminance(colours[ground])), reverse=True)
            assert (one + 0.05) / (other + 0.05) >= 4.5, (ink, ground)


def test_the_page_of_a_real_exporter(tmp_path: Path, speak: Any) -> None:
    """Over HTTP: it loads nothing and runs nothing, and names the rank that died."""
    port, folder = free_port(), tmp_path
    config = read_config([f"--socket={folder}/rank.sock", f"--web.listen-address=127.0.0.1:{port}", "--no-gpu"], {})

    def look() -> tuple[str, str]:
        deadline = time.monotonic() + 90
        while not answers(f"http://127.0.0.1:{port}/-/ready"):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        speaker = speak(folder / "rank.sock", rank=5)
        speaker.hello()
        speaker.close()
        while True:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/", timeout=60) as response:
                html, policy = response.read().decode(), response.headers["Content-Security-Policy"]
            if "Rank dead" in html or time.monotonic() > deadline:
                return html, policy
            time.sleep(0.01)

    async def serve() -> tuple[str, str]:
        stop = asyncio.Event()
        serving = asyncio.create_task(Exporter(config, None).run(stop))
        try:
            return await asyncio.to_thread(look)
        finally:
            stop.set()
            await serving

    html, policy = asyncio.run(serve())
    (line,) = Text(html).items
    assert line.startswith("Rank dead Rank 5 of run llama-7b died")
    assert "default-src 'none'" in policy
    assert 'http-equiv="refresh"' in html
