"""The status page: what a person sees of this node now."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import pytest

from tachograph.catalog import index as catalog
from tachograph.node.api.answer import NodeAnswer
from tachograph.node.ranks.frames import Bye, Event, Hello, Peer, State
from tachograph.node.ranks.limits import Limits
from tachograph.node.ranks.rank_table import RankTable
from tachograph.node.samples import GpuSnapshot, Sample
from tachograph.node.status_page.page import Sections, status_page

VOID = {"meta", "br", "link", "hr", "img", "input"}


class Page(HTMLParser):
    """Collects table rows and checks that every element is closed."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[dict[str, str]] = []
        self.open: list[str] = []
        self._cell: str | None = None
        self.feed(html)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag in VOID:
            return
        self.open.append(tag)
        if tag == "tr":
            self.rows.append({})
        if "data-name" in dict(attrs):
            self._cell = dict(attrs)["data-name"]
            self.rows[-1][self._cell or ""] = ""

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag
        if tag in ("td", "th"):
            self._cell = None

    def handle_data(self, data: str) -> None:
        if self._cell is not None:
            self.rows[-1][self._cell] += data


@pytest.fixture
def table(hand: Any, two_gpus: Any) -> RankTable:
    return RankTable(Limits(), hand.clock, two_gpus)


def page(table: RankTable, hand: Any, gpus: Any = (), snapshot: GpuSnapshot | None = None) -> str:
    return status_page(
        NodeAnswer("node-27", table, gpus, snapshot, hand.clock), table, {"State": "ready"}, Sections(hand.clock)
    )


def test_an_empty_node(table: RankTable, hand: Any) -> None:
    """Without ranks and GPUs the page says so, and what to do; it refreshes by itself and links to the metrics."""
    html = page(table, hand)
    assert Page(html).rows == []
    for words in ("node-27", "No rank has connected", "No GPU is known", 'http-equiv="refresh" content="5"',
                  'href="/metrics"', 'name="viewport"', "prefers-color-scheme: dark", 'lang="en"'):  # fmt: skip
        assert words in html


def test_ranks(table: RankTable, hand: Any) -> None:
    """Each rank has its number, GPU, state, step, phase and for how long, loss and wait; what ended says when."""
    peer = Peer(0, 1)
    table.hello("a", Hello(v=1, run="llama-7b", rank=0, uuid="GPU-bbbb"), peer)
    for seq in range(3):
        said = {"step": 48201, "phase": "data", "phase_seconds": 10.0, "metrics": {"loss": 2.3125}}
        table.state("a", State(v=1, seq=seq, time=50.0, **said))
        hand.turn(1.0, table.tick)
        table.heard("a")
    (rank,) = table.ranks()
    rank.series.gauges |= {"recent_step_seconds": {"": 0.4}, "recent_wait_seconds": {"": 0.1}}
    table.hello("b", Hello(v=1, run="llama-7b", rank=1), peer)
    table.state("b", State(v=1, seq=1, time=50.0, metrics={"loss": "NaN"}))
    table.hello("c", Hello(v=1, run="llama-7b", rank=2), peer)
    table.bye("c", Bye(v=1, outcome="failed", category="oom", message="<out> of memory"))
    hand.turn(5.0, table.tick)
    table.lost("b")
    hand.turn(90.0, lambda: (table.tick(), table.heard("a")))
    html = page(table, hand)
    rows = Page(html).rows[1:]
    assert "<caption>Run <bdi>llama-7b</bdi>" in html
    assert rows[0] == {
        "Rank": "0", "State": "runningpid 1", "Phase": "data for 106 s", "Step": "48,201", "Loss": "2.312",
        "Data": "–", "Waits": "25%", "Lags": "–", "GPU": "1",
    }  # fmt: skip
    assert rows[1]["State"] == "dead90 s ago"
    assert rows[1]["Loss"] == "–"
    assert rows[2]["State"] == "failed95 s agooom: <out> of memory"


def test_coordinates(table: RankTable, hand: Any) -> None:
    """Where a rank of a run says its coordinates, the run's table has a column of them; another run's has none."""
    for number, given in enumerate([{"pp": 1, "dp": 5}, None, {"pp": 0, "dp": "x"}]):
        table.hello(f"a{number}", Hello(v=1, run="a", rank=number, coordinates=given), Peer(0, 1))
    table.hello("b", Hello(v=1, run="b", rank=0), Peer(0, 1))
    shown = [row.get("Coordinates") for row in Page(page(table, hand)).rows if row]
    assert shown == ["dp 5, pp 1", "–", "pp 0", None]


def test_not_a_number_is_seen(table: RankTable, hand: Any) -> None:
    """A NaN loss stands out in words, and a silent rank says for how long."""
    table.hello("b", Hello(v=1, run="r", rank=1), Peer(0, 1))
    table.state("b", State(v=1, seq=1, time=50.0, metrics={"loss": "NaN"}))
    hand.turn(12.0, table.tick)
    (row,) = Page(page(table, hand)).rows[1:]
    assert row["Loss"] == "NaN"
    assert row["State"] == "frozensilent for 12 spid 1"


def test_gpus(table: RankTable, hand: Any, two_gpus: Any) -> None:
    """A GPU shows its readings with their limits; one that cannot be read says so; zero is 0 and absent is a dash."""
    gpu = ("0", "GPU-aaaa")
    samples = (
        Sample(catalog.GPU_UP, gpu, 1), Sample(catalog.GPU_UP, ("1", "GPU-bbbb"), 0),
        Sample(catalog.GPU_UNAVAILABLE, ("1", "GPU-bbbb", "reset_required"), 1),
        Sample(catalog.GPU_UTILIZATION, gpu, 1.0), Sample(catalog.GPU_SM_ACTIVE, gpu, 0.0),
        Sample(catalog.GPU_TENSOR_ACTIVE, gpu, 0.414), Sample(catalog.GPU_MEMORY_USED, gpu, 72.5 * 2**30),
        Sample(catalog.GPU_MEMORY_TOTAL, gpu, 80 * 2**30), Sample(catalog.GPU_TEMPERATURE, (*gpu, "gpu"), 84.0),
        Sample(catalog.GPU_TEMPERATURE, (*gpu, "memory"), 99.0), Sample(catalog.GPU_POWER, gpu, 655.0),
        Sample(catalog.GPU_POWER_LIMIT, gpu, 700.0), Sample(catalog.GPU_CLOCK_EVENT, (*gpu, "hw_thermal_slowdown"), 1),
    )  # fmt: skip
    snapshot = GpuSnapshot(samples, 0.012, hand.now - 0.4, True, "")
    first, second = Page(page(table, hand, two_gpus.gpus(), snapshot)).rows[1:]
    assert first["State"] == "readablethrottled at 84 °C: hw thermal slowdown"
    assert first["Activity"] == "0%tensor 41%kernels 100%"
    assert first["Memory"] == "72.5 GiB of 80.0 GiB"
    assert first["Temperature"] == "84 °Cmemory 99 °C"
    assert first["Power"] == "655 W of 700 W"
    assert second["State"] == "cannot be readreset required"
    assert first["Rank"] == "–"
    assert second["Power"] == "–"
    assert "read 0.4 s ago in 12.0 ms" in page(table, hand, two_gpus.gpus(), snapshot)


def test_a_readable_gpu_that_is_not_well(table: RankTable, hand: Any, two_gpus: Any) -> None:
    """The driver's recommendation and Xids that no program explains are shown beside "readable", others not."""
    gpu, other = ("0", "GPU-aaaa"), ("1", "GPU-bbbb")
    samples = (
        Sample(catalog.GPU_UP, gpu, 1), Sample(catalog.GPU_UP, other, 1),
        Sample(catalog.GPU_RECOVERY_ACTION, (*gpu, "gpu_reset"), 1),
        Sample(catalog.GPU_RECOVERY_ACTION, (*other, "none"), 1),
        Sample(catalog.GPU_XID_INFO, (*gpu, "48", "reset", "uncorrectable ECC error"), 1),
        Sample(catalog.GPU_XID_INFO, (*other, "13", "application", "a kernel broke the rules"), 1),
        Sample(catalog.GPU_XID_INFO, (*other, "45", "ignore", "a program's channels were removed"), 1),
    )  # fmt: skip
    html = page(table, hand, two_gpus.gpus(), GpuSnapshot(samples, 0.012, hand.now, True, ""))
    first, second = Page(html).rows[1:]
    assert first["State"] == "readablethe driver recommends: gpu resethad Xid 48 (uncorrectable ECC error): reset"
    assert second["State"] == "readable"


def test_the_rank_on_a_gpu(table: RankTable, hand: Any, two_gpus: Any) -> None:
    """A GPU names the living ranks that compute on it, and none that ended."""
    for rank in range(3):
        hello = Hello(v=1, run="llama-7b", rank=rank, uuid="GPU-bbbb" if rank else "GPU-aaaa")
        table.hello(rank, hello, Peer(0, 1 + rank))
    table.bye(0, Bye(v=1, outcome="finished"))
    first, second = (row for row in Page(page(table, hand, two_gpus.gpus())).rows if "Name" in row)
    assert (first["Rank"], second["Rank"]) == ("–", "llama-7b 1llama-7b 2")


def test_without_readings_the_reason_is_shown(table: RankTable, hand: Any, two_gpus: Any) -> None:
    """GPUs that cannot be read have a reason, and GPUs not read yet are not called broken readings."""
    broken = GpuSnapshot((), 0.0, hand.now, False, "no NVIDIA driver: <lib> is not found")
    assert "no NVIDIA driver: &lt;lib&gt; is not found" in page(table, hand, (), broken)
    assert "no readings yet" in page(table, hand, two_gpus.gpus(), None)


def test_latest_events_come_first(table: RankTable, hand: Any) -> None:
    """The latest event is at the top, a dozen are shown at most, and any time that a rank may send can be displayed."""
    table.hello("a", Hello(v=1, run="r", rank=0), Peer(0, 1))
    events = [Event(id=n, kind="checkpoint_saved", time=float(n), step=n) for n in range(1, 20)]
    events.append(Event(id=20, kind="late", time=2.0**36))
    table.state("a", State(v=1, seq=1, time=1.0, events=events))
    rows = [row for row in Page(page(table, hand)).rows if "Event" in row]
    assert len(rows) == 12
    assert rows[0]["Event"] == "late"
    assert rows[1] == {"When (UTC)": "00:00:19", "Run": "r", "Rank": "0", "Event": "checkpoint saved", "Step": "19"}
