"""The exposition: byte for byte for a synthetic node, and readable by the parsers that count."""

from __future__ import annotations

import gzip
import math
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from tachograph.catalog import index as catalog
from tachograph.node.app import Exporter
from tachograph.node.config import read_config
from tachograph.node.exposition import OPENMETRICS, PROTOBUF, TEXT, Exposition, Form, negotiate, number, render
from tachograph.node.histograms import Buckets, RunHistogram
from tachograph.node.ranks.frames import Bye, Peer, State, decode
from tachograph.node.samples import GpuSnapshot, Sample

GOLDEN = Path(__file__).parent / "golden"
REGENERATE = "TACHOGRAPH_REGENERATE"

RANK_FRAMES = (
    '{"v":1,"type":"hello","run":"llama-7b","rank":0,"local_rank":0,"world_size":3,"attempt":1,"pid":41,'
    '"uuid":"GPU-aaaa","facts":{"precision":"bf16","global_batch":1024,"framework":"pytorch 2.13",'
    '"flops_convention":"causal","tier":"hero"}}',
    '{"v":1,"type":"state","seq":1,"time":1763690000.5,"step":480,"phase":"backward","phase_since":1763690000.25,'
    '"progress_time":1763689999.1,"metrics":{"loss":2.31,"grad_norm":"NaN","learning_rate":0.0003,'
    '"tokens_total":2013265920,"steps_total":480,"flops_total":1.5e21,"phase_seconds_total":{"data":1.2,"forward":12.5},'
    '"recent_steps":40,"recent_step_seconds":0.5,"recent_wait_seconds":0,"recent_phase_seconds":{"backward":0.25},'
    '"collective_wait_seconds_total":{"all_reduce":3.25},"collective_enqueued":{"0":301,"tp \\"a\\\\b\\"":7},'
    '"nonfinite_total":{"grad_norm":1},"nonfinite_step":{"grad_norm":479},"nope":1,"collectives_total":{"all_reduce":9},'
    '"tagged_steps_total":{"gc":2},"invariant":{"params":9007199254740991},"invariant_step":{"params":479},'
    '"phase_excess_seconds_total":{"data":0.25},"productive_seconds_total":90.5,'
    '"lost_seconds_total":{"data":1.25,"hang":0},"threshold":{"hang_seconds":60}},'
    '"histograms":{"step_seconds":{"schema":3,"sum":101.25,"count":480,"buckets":{"-17":12,"-16":460,"40":7,"90":1}}},'
    '"dropped":2}',
)
"""Rank 0: everything a rank can send, with a NaN, a zero counter, quotes and backslashes, and an unknown name."""

OTHERS = (
    '{"v":1,"type":"hello","run":"llama-7b","rank":1,"local_rank":1,"world_size":3,"attempt":1,"pid":42}',
    '{"v":1,"type":"state","seq":1,"time":1763690000,"step":479,"phase":"data","phase_since":1763689990,'
    '"metrics":{"loss":2.4,"tokens_total":0,"productive_seconds_total":9.5,"lost_seconds_total":{"data":10}}}',
    '{"v":1,"type":"hello","run":"\\"quoted\\\\","rank":0,"pid":43}',
    '{"v":1,"type":"bye","outcome":"failed","category":"oom","message":"CUDA out of memory"}',
)
"""Rank 1 dies; a run with quotes and a backslash in its name fails before it said anything."""


INFO = ("NVIDIA H100 80GB HBM3", "00000000:3B:00.0", "1650222013402", "96.00.89.00.01", "580.95.05", "13.0")


class Gpus:
    """The GPU side of a synthetic node: one GPU that is read and had an Xid, one that is lost; GPM is not there."""

    def __init__(self, facts: Any, monotonic: float) -> None:
        self.gpus, self.peak_flops, self._monotonic = facts.gpus, facts.peak_flops, monotonic
        self.gpu_of_pid, self.processes = facts.gpu_of_pid, facts.processes

    async def run(self) -> None:
        """Nothing to do."""

    def collectors(self) -> dict[str, str]:
        return {"gpu": "", "gpm": "not_supported", "xid": ""}

    def worker_ends(self) -> dict[str, int]:
        return {"crashed": 0, "killed": 1, "driver": 0}

    def snapshot(self) -> GpuSnapshot:
        gpu, lost = ("0", "GPU-aaaa"), ("1", "GPU-bbbb")
        samples = (
            Sample(catalog.GPU_UP, gpu, 1),
            Sample(catalog.GPU_UP, lost, 0),
            Sample(catalog.GPU_UNAVAILABLE, (*lost, "lost"), 1),
            Sample(catalog.GPU_INFO, (*gpu, *INFO), 1),
            Sample(catalog.GPU_UTILIZATION, gpu, 0.0),
            Sample(catalog.GPU_MEMORY_UTILIZATION, gpu, 0.57),
            Sample(catalog.GPU_ENGINE_ACTIVE, gpu, 0.75),
            Sample(catalog.GPU_TENSOR_ACTIVE, gpu, 0.5),
            Sample(catalog.GPU_MEMORY_USED, gpu, 72.5 * 2**30),
            Sample(catalog.GPU_MEMORY_FREE, gpu, 7.0 * 2**30),
            Sample(catalog.GPU_TEMPERATURE, (*gpu, "gpu"), 61.0),
            Sample(catalog.GPU_POWER, gpu, 655.25),
            Sample(catalog.GPU_ENERGY, gpu, 123456.789),
            Sample(catalog.GPU_CLOCK, (*gpu, "sm"), 1980e6),
            Sample(catalog.GPU_REMAPPED_ROWS, (*gpu, "uncorrected"), 0),
            Sample(catalog.GPU_PEAK_FLOPS, (*gpu, "bf16"), 989.4e12),
            Sample(catalog.GPU_XID_ERRORS, (*gpu, "79"), 0),
            Sample(catalog.GPU_XID_ERRORS, (*gpu, "31"), 2),
            Sample(catalog.GPU_XID_TIMESTAMP, (*gpu, "31"), 1763690000.5),
            Sample(catalog.GPU_XID_INFO, (*gpu, "31", "application", 'a "bad" address'), 1),
            *(Sample(catalog.GPU_CLOCK_EVENT, (*gpu, r), r == "sw_power_cap") for r in catalog.CLOCK_EVENT_REASONS),
            *(Sample(catalog.NODE_KERNEL_EVENTS, (kind,), kind == "nfs") for kind in catalog.KERNEL_EVENT_KINDS),
            Sample(catalog.NODE_KERNEL_MESSAGE, ("nfs", "nfs: server fs01 not responding, still trying"), 2.5),
        )
        return GpuSnapshot(samples, duration=0.0125, monotonic=self._monotonic - 0.5, ok=True, reason="")


@pytest.fixture
def node(hand: Any, two_gpus: Any, tmp_path: Path) -> Exporter:
    exporter = Exporter(
        read_config([f"--socket={tmp_path}/s", "--run.owner=never"], {}), Gpus(two_gpus, hand.now + 5.0), hand.clock
    )
    table = exporter._table
    for link, frames in (("zero", RANK_FRAMES), ("one", OTHERS[:2]), ("two", OTHERS[2:])):
        for line in frames:
            frame = decode(line.encode())
            table.frames += 1
            if isinstance(frame, State):
                table.state(link, frame)
            elif isinstance(frame, Bye):
                table.bye(link, frame)
            else:
                table.hello(link, frame, Peer(1000, 40 + len(link)))
    table.lost("one")
    table.rejected["malformed"] += 1
    hand.turn(5.0, table.tick)
    return exporter


def steady(exporter: Exporter) -> Iterator[Any]:
    """Leave out what no two machines or moments share."""
    for sample in exporter.samples():
        moving = sample.metric.name.startswith("process_") or (
            sample.metric is catalog.COLLECTOR_DURATION and sample.labels == ("ranks",)
        )
        if sample.metric is catalog.EXPORTER_INFO:
            yield Sample(sample.metric, ("0.0.0", "3.0.0"), 1)
        elif not moving:
            yield sample


@pytest.mark.parametrize(("form", "name"), [(TEXT, "node.prom"), (OPENMETRICS, "node.openmetrics")])
def test_golden_scrape(node: Exporter, form: Form, name: str) -> None:
    """The whole scrape of a synthetic node is unchanged; TACHOGRAPH_REGENERATE=1 rewrites it: read the diff."""
    text = render(steady(node), form)
    golden = GOLDEN / name
    if os.environ.get(REGENERATE):
        golden.write_bytes(text)
    assert text.decode() == golden.read_text()


def test_both_formats_say_the_same(node: Exporter) -> None:
    """Prometheus' own parsers read both formats, and find the same series with the same values."""

    def values(families: Any) -> dict[Any, float]:
        found: dict[Any, float] = {}
        for family in families:
            for sample in family.samples:
                key = (sample.name, frozenset(sample.labels.items()))
                assert key not in found, f"twice: {key}"
                found[key] = sample.value
        return found

    samples = list(node.samples())
    text = values(parse_text(render(samples, TEXT).decode()))
    openmetrics = values(parse_openmetrics(render(samples, OPENMETRICS).decode()))
    assert text.keys() == openmetrics.keys()
    assert all(
        a == b or (math.isnan(a) and math.isnan(openmetrics[k])) for k, a in text.items() for b in [openmetrics[k]]
    )
    assert text["tachograph_rank_up", frozenset({"run": '"quoted\\', "rank": "0"}.items())] == 0
    assert text.keys() >= {("process_cpu_seconds_total", frozenset()), ("process_resident_memory_bytes", frozenset())}


def test_openmetrics_types(node: Exporter) -> None:
    """Counters and infos are families without their suffix, with units where the name has them, and an end."""
    lines = render(node.samples(), OPENMETRICS).decode().splitlines()
    assert lines[-1] == "# EOF"
    for line in (
        "# TYPE tachograph_rank info", "# TYPE tachograph_train_tokens counter",
        "# TYPE tachograph_train_step_seconds histogram", "# UNIT tachograph_rank_phase_seconds seconds",
    ):  # fmt: skip
        assert line in lines


def test_promtool_has_nothing_to_say(node: Exporter, promtool: Path) -> None:
    """`promtool check metrics` is silent about the whole scrape."""
    done = subprocess.run(
        [promtool, "check", "metrics"], input=render(node.samples(), TEXT), capture_output=True, check=False, timeout=20
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


def test_a_series_is_shown_once() -> None:
    """Two samples of one series cannot both be shown: the later one stands, and families stay together."""
    up, info = catalog.RANK_UP, catalog.EXPORTER_INFO
    text = render(
        [Sample(up, ("r", "0"), 1), Sample(info, ("1", "2"), 1), Sample(up, ("r", "1"), 1), Sample(up, ("r", "0"), 0)],
        TEXT,
    ).decode()
    assert [line for line in text.splitlines() if line.startswith("tachograph_rank_up")] == [
        'tachograph_rank_up{run="r",rank="0"} 0', 'tachograph_rank_up{run="r",rank="1"} 1',
    ]  # fmt: skip
    assert text.count("# TYPE tachograph_rank_up ") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.0, "0"), (1, "1"), (True, "1"), (0.1, "0.1"), (1e15, "1000000000000000.0"), (1e21, "1e+21"),
     (989.4e12, "989400000000000"), (1763690000.25, "1763690000.25"), (5e-324, "5e-324"),
     (math.nan, "NaN"), (math.inf, "+Inf"), (-math.inf, "-Inf")],
)  # fmt: skip
def test_numbers(value: float, text: str) -> None:
    """A value is written so that reading it gives the same double."""
    assert number(value) == text
    assert float(text) == value or math.isnan(value)


PROMETHEUS_2 = (
    "application/openmetrics-text;version=1.0.0,application/openmetrics-text;version=0.0.1;q=0.75,"
    "text/plain;version=0.0.4;q=0.5,*/*;q=0.1"
)
PROMETHEUS_3 = (
    "application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,text/plain;version=1.0.0;q=0.4,*/*;q=0.2"
)
DELIMITED = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
PROMETHEUS_2_NATIVE = f"{DELIMITED},{PROMETHEUS_2.replace('version=1.0.0,', 'version=1.0.0;q=0.8,')}"
PROMETHEUS_3_NATIVE = (
    f"{DELIMITED};escaping=allow-utf-8;q=0.6,application/openmetrics-text;version=1.0.0;escaping=allow-utf-8;q=0.5,"
    "application/openmetrics-text;version=0.0.1;q=0.4,text/plain;version=1.0.0;escaping=allow-utf-8;q=0.3,"
    "text/plain;version=0.0.4;q=0.2,*/*;q=0.1"
)


@pytest.mark.parametrize(
    ("accept", "form"),
    [
        (PROMETHEUS_2_NATIVE, PROTOBUF), (PROMETHEUS_3_NATIVE, PROTOBUF), (DELIMITED.upper(), PROTOBUF),
        (f"{DELIMITED.replace(';', ' ; ')} , */*", PROTOBUF), (f"text/plain,{DELIMITED}", PROTOBUF),
        (f"{DELIMITED};q=0.4,text/plain;q=0.5", TEXT), (f"{DELIMITED};q=0,*/*;q=0.1", TEXT), (f"{DELIMITED};q=0", TEXT),
        (f"{DELIMITED};q=0.7,application/openmetrics-text;q=0.8", OPENMETRICS), (f"{DELIMITED};q=nan", TEXT),
        (DELIMITED.replace("delimited", "text"), TEXT), (DELIMITED.replace("MetricFamily", "Metric"), TEXT),
        ("application/vnd.google.protobuf", TEXT), ("application/*", TEXT),
        ("", TEXT), ("*/*", TEXT), ("text/html,application/xhtml+xml,*/*;q=0.8", TEXT), (PROMETHEUS_2, OPENMETRICS),
        (PROMETHEUS_3, OPENMETRICS), ("text/plain;version=0.0.4;q=0.5,*/*;q=0.1", TEXT),
        ("application/openmetrics-text;q=0.2,text/plain;q=0.9", TEXT), ("application/openmetrics-text;q=0", TEXT),
        ("application/openmetrics-text;q=high,text/plain", TEXT), ("APPLICATION/OPENMETRICS-TEXT ; q=1", OPENMETRICS),
        (";;,,;q=", TEXT),
    ],
)  # fmt: skip
def test_negotiation(accept: str, form: Form) -> None:
    """The reader gets the format it prefers, and text where it does not say."""
    assert negotiate(accept) is form


def test_gzip_is_a_fraction(node: Exporter) -> None:
    """The scrape compresses well enough that level 1 is worth its time."""
    text = render(node.samples(), TEXT)
    assert len(gzip.compress(text, 1)) < 0.3 * len(text)


def test_what_is_kept_between_pages() -> None:
    """A page is the same whether one was written before it or not, and only what the last one used is kept."""
    up, info, steps = catalog.RANK_UP, catalog.EXPORTER_INFO, catalog.TRAIN_STEP_SECONDS
    histogram = RunHistogram()
    histogram.add(Buckets({-17: 3, 40: 1}, 2.5), Buckets())
    first = [Sample(up, ("r", str(rank)), 1) for rank in range(100)]
    second = [Sample(up, ("r", "7"), 0), Sample(info, ('"', "\n"), 1), histogram.sample(steps, ("r",))]
    exposition = Exposition()
    for samples in (first, second, second, first, second):
        for form in (TEXT, OPENMETRICS):
            assert exposition.render(samples, form) == render(samples, form)
    assert {name: set(kept) for name, kept in exposition._beginnings._known.items()} == {
        up.name: {("r", "7")}, info.name: {('"', "\n")}, steps.name: {("r",)},
    }  # fmt: skip
