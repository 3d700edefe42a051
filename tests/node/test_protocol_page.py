"""`docs/protocol.md`: its frames, answers, errors and numbers are those of the code."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph import wire
from tachograph.catalog import index as catalog
from tachograph.node import histograms
from tachograph.node.ranks import boxes, claims, limits, rank, rank_connection, rank_table, series
from tachograph.node.ranks.frames import BoxPart, Bye, Hello, Peer, State, Supervision, Unrecorded, decode

PAGE = (Path(__file__).parents[2] / "docs/protocol.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```json\n(.*?)\n```", PAGE, re.DOTALL)

EXIT, AT_EXIT, BOX, CAPTURE, UNRECORDED, SUPERVISOR = (
    next(block for block in BLOCKS if f'"{name}":' in block)
    for name in ("exit_code", "at_exit", "parts", "capture", "why", "mode")
)


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu", "--rank.series=all")


def test_the_worked_frames_work(exporter: Any) -> None:
    """Every frame on the page, sent as it stands, does what the page says: nothing is refused or dropped."""
    hello, answer, later_answer, state, bye, refusal = (
        block for block in BLOCKS if block not in (EXIT, AT_EXIT, BOX, CAPTURE, UNRECORDED, SUPERVISOR)
    )
    rank, began = exporter.speaker(), time.time()
    rank.raw(hello.encode() + b"\n")
    assert rank.answer() == {"ok": True, "last_step": None}
    rank.raw(state.encode() + b"\n")
    labels = {"run": "llama-7b", "rank": 5}
    exporter.eventually(lambda: exporter.scrape().value("train_step", **labels) == 480)
    again = exporter.speaker()
    again.raw(hello.encode() + b"\n")
    assert again.answer() == json.loads(answer)
    again.raw(state.replace('"seq":1,', '"seq":"1",').encode() + b"\n")
    assert again.answer() == json.loads(refusal)
    again.raw(bye.encode() + b"\n")
    exporter.eventually(lambda: exporter.scrape().value("rank_state", state="failed", **labels) == 1)
    scrape = exporter.scrape()
    assert scrape.value("train_tokens_total", **labels) == 983040
    assert scrape.value("rank_job_info", scheduler="slurm", job_id="4711", namespace="", pod="", **labels) == 1
    exporter.eventually(lambda: exporter.scrape().value("train_productive_seconds_total", run="llama-7b") == 96.4)
    assert exporter.scrape().value("train_lost_seconds_total", run="llama-7b", cause="init") == 20.5
    assert scrape.value("train_tagged_steps_total", tag="gc", **labels) == 1
    successor = exporter.speaker()
    successor.raw(hello.replace('"pid":4242', '"pid":4243').encode() + b"\n")
    heard = successor.answer()
    assert heard.keys() == json.loads(later_answer).keys()
    assert heard["last_step"] == 480
    assert began <= heard["ended"] <= time.time()
    assert sum(scrape.value("exporter_series_dropped_total", reason=r) for r in catalog.DROP_REASONS) == 0
    assert sum(scrape.value("exporter_frames_rejected_total", reason=r) for r in catalog.REJECT_REASONS) == 1


@pytest.mark.parametrize(("frame", "reason"), [(EXIT, "exit_code"), (AT_EXIT, "finished")])
def test_the_other_byes_work(exporter: Any, frame: str, reason: str) -> None:
    """The examples of a bye with an exit code and of one at exit make a rank that ended so."""
    rank = exporter.speaker(run=reason)
    rank.hello()
    rank.raw(frame.encode() + b"\n")
    ended = {"run": reason, "rank": 0, "reason": reason}
    exporter.eventually(lambda: exporter.scrape().value("rank_ended_timestamp_seconds", **ended))


def test_the_box_works(table: Any) -> None:
    """The example of a box, sent as it stands by the rank of the first example, is kept, and is what it says."""
    link = Link()
    hello, box = (decode(next(block for block in BLOCKS if kind in block).encode()) for kind in ('"hello"', '"box"'))
    assert isinstance(hello, Hello)
    assert isinstance(box, BoxPart)
    table.hello(link, hello, Peer(1000, 4242))
    table.box(link, box)
    (kept,) = table.boxes.of("llama-7b")
    assert (kept.rank, kept.attempt, json.loads(kept.text)["where"]) == (5, "0", "data.py:88 load_shard")
    assert table.capture("llama-7b", "asked for by alice") == 1
    assert link.asked == ["asked for by alice"]


def test_the_supervisor_works(exporter: Any) -> None:
    """The example, sent as it stands on a connection that is closed at once, is shown with all that it says."""
    supervisor = exporter.speaker()
    supervisor.raw(SUPERVISOR.encode() + b"\n")
    supervisor.close()
    exporter.eventually(lambda: exporter.scrape().value("supervisor_restarts_left", run="llama-7b") == 2)
    shown = exporter.scrape()
    assert shown.value("supervisor_actions_total", run="llama-7b", action="restart", outcome="done") == 1
    assert shown.value("supervisor_webhooks_total", run="llama-7b", outcome="forged") == 1
    assert shown.value("supervisor_look_age_seconds", run="llama-7b", mode="act") >= 0
    assert shown.value("supervisor_blind_seconds", run="llama-7b") == 0
    assert shown.value("supervisor_recovery_seconds", run="llama-7b") == 41.5
    assert shown.value("supervisor_lost_steps_total", run="llama-7b") == 12
    assert shown.value("supervisor_saved_gpu_seconds_total", run="llama-7b") == 6868
    assert shown.value("supervisor_skips", run="llama-7b", steps="128-157") == 2
    asked = {"action": "exclude_node", "question": "1f0c3a"}
    assert shown.value("supervisor_question_seconds", run="llama-7b", **asked) >= 31


class Link:
    """A connection that can be asked for a box."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    def ask_for_box(self, reason: str) -> None:
        self.asked.append(reason)


def test_the_talk_by_hand_works(exporter: Any) -> None:
    """The opening example is what a person with `nc -U` sees; with nc on this machine it is played by nc."""
    talk = re.search(r"\$ nc -U \S+\n(.*?)\n```", PAGE, re.DOTALL)
    assert talk is not None
    hello, answer, state, bye = talk[1].splitlines()
    said = "\n".join((hello, state, bye, ""))
    if (nc := shutil.which("nc")) is not None and "-U" in subprocess.run(
        [nc, "-h"], capture_output=True, text=True, check=False
    ).stderr:
        heard = subprocess.run(
            [nc, "-N", "-U", exporter.socket], input=said, capture_output=True, text=True, timeout=90, check=True
        )
        assert heard.stdout.splitlines() == [answer]
    else:
        rank = exporter.speaker()
        rank.raw(said.encode())
        assert rank.answer() == json.loads(answer)
    finished = {"run": "by-hand", "rank": 0, "state": "finished"}
    exporter.eventually(lambda: exporter.scrape().value("rank_state", **finished) == 1)
    assert exporter.scrape().value("train_step", run="by-hand", rank=0) == 7


@pytest.mark.parametrize(
    ("kind", "frame"),
    [
        ("hello", Hello),
        ("state", State),
        ("box", BoxPart),
        ("unrecorded", Unrecorded),
        ("supervisor", Supervision),
    ],
)
def test_fields_are_listed(kind: str, frame: Any) -> None:
    """Each field of a frame has its line and stands in the worked example, and neither has one that the code lacks."""
    section = PAGE.partition(f"### {kind}:")[2].partition("\n```json")[2].partition("\n\n- ")[2].partition("\n\n")[0]
    lines = re.findall(r"^- ((?:`\w+`(?:, )?)+)", f"- {section}", re.MULTILINE)
    known = {"type", *frame.__struct_fields__}
    assert set(re.findall(r"`(\w+)`", " ".join(lines))) == known
    assert json.loads(next(block for block in BLOCKS if f'"type":"{kind}"' in block)).keys() == known


def test_bye_is_listed() -> None:
    """The last frame's fields stand in its examples with an exit code and at exit."""
    assert json.loads(EXIT).keys() | json.loads(AT_EXIT).keys() == {"type", *Bye.__struct_fields__}


def test_reasons_are_listed() -> None:
    """Each reason of the catalog has its line, and no line has a reason that is none."""
    lines = re.findall(r"^- ([^:]+):", PAGE.partition("## Refusals")[2], re.MULTILINE)
    listed = re.findall(r"`(\w+)`", " ".join(lines))
    assert listed == [*sorted_like(catalog.REJECT_REASONS, listed), *sorted_like(catalog.DROP_REASONS, listed)]


def sorted_like(words: tuple[str, ...], order: list[str]) -> list[str]:
    assert set(words) <= set(order)
    return sorted(words, key=order.index)


def test_error_texts(exporter: Any) -> None:
    """The errors that a sender can provoke alone say what is wrong and what is expected."""
    rude = exporter.speaker()
    for line, error in (
        ('{"v":1,"x"}', "not one JSON object on one line: JSON is malformed: expected ':' (byte 10)"),
        ('{"v":2,"type":"hello"}', "version v=2: this exporter speaks v=1"),
        ('{"v":1,"type":"shout"}', "unknown type 'shout': expected hello, state, box, bye, unrecorded or supervisor"),
        ('{"v":1,"type":"hello","rank":0}', "hello: Object missing required field `run`"),
        ('{"v":1,"type":"bye","outcome":"failed"}', "this connection speaks for no rank: say hello first"),
        ("x" * 65_537, "a frame has at most 65536 bytes; reading on at the next line"),
    ):
        rude.raw(line.encode() + b"\n")
        assert rude.answer()["error"] == error


def test_numbers() -> None:
    """Limits, times and the histogram's formula are those the code keeps."""
    given = limits.Limits()
    for words in (
        f"at most {wire.MAX_FRAME_BYTES:,} bytes",
        f"more than {wire.MAX_RATE_HZ:g} a second after a burst of {rank_connection.BURST}",
        f"for {rank_connection.PAUSE_SECONDS} s", f"silent for more than {given.frozen_after:g} s",
        f"more than {given.label_values} values of one label, {given.layers} of layers",
        f"more than {given.series_per_rank} series",
        f"{given.ranks} ranks live", f"over {series.MAX_LABEL_BYTES} bytes", f"up to {wire.MAX_EVENTS}",
        f"| {given.retention / 60:g} min |", f"| {given.retention_finished / 60:g} min |",
        f"{wire.HISTOGRAM_INDEX_RANGE[1]}",
        f"at schema {wire.HISTOGRAM_SCHEMA}", f"schema {wire.FINE_SCHEMA}, in at most {wire.MAX_FINE_BUCKETS} buckets",
        f"kept within −{-wire.FINE_INDEX_RANGE[0]} … {wire.FINE_INDEX_RANGE[1]}",
        wire.SYSTEM_SOCKET, *(f"`{phase}`" for phase in catalog.PHASES),
        *(f"`{category}`" for category in catalog.FAILURE_REASONS),
        *(f"`{name}`" for name in (*catalog.RANK_JOB_INFO.labels[2:], *catalog.TRAIN_CONFIG_INFO.labels[2:])),
        *(f"`{row.key}`" for row in catalog.TRAIN_METRICS.values() if row.merged or row.concluded),
        f"up to {claims.MAX_FACT_BYTES} bytes",
        f"at most {wire.MAX_BOX_BYTES:,} bytes", f"1 to {wire.MAX_BOX_PARTS}",
        f"up to {wire.MAX_BOX_REASON_BYTES} bytes",
        f"At most {boxes.USER_BYTES >> 20} MiB", f"{boxes.NODE_BYTES >> 20} MiB in all",
        f"once in {rank_table.CAPTURE_SECONDS:g} s",
        f"up to {rank.MAX_DEVICES_BYTES:,} bytes", f"up to {wire.MAX_NAME_BYTES} bytes",
    ):  # fmt: skip
        assert words in PAGE, words
    assert (wire.bucket_index(0.25), wire.bucket_index(0.25, wire.FINE_SCHEMA)) == (-16, -64)
    assert (histograms.BOUNDS[0], histograms.BOUNDS[-1]) == (2.0**-7, 128.0)
