"""The whole exporter in a process of its own: real sockets, real scrapes, real signals."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tachograph.node.exposition import OPENMETRICS, PROTOBUF, TEXT
from tests.node.client_model import families

UNIQUE = "0f8c1f0e-5b1c-4a64-9a5e-3c4f8a1b2d3e"
NOBODY = 65534
RANK_PROCESS = """
import json, socket, sys, time
s = socket.socket(socket.AF_UNIX)
s.connect(sys.argv[1])
send = lambda **frame: s.sendall(json.dumps({"v": 1, **frame}).encode() + b"\\n")
send(type="hello", run=sys.argv[2], rank=0, pid=1)
s.recv(1000)
for seq in range(1000):
    send(type="state", seq=seq, time=time.time(), step=seq, metrics={"tokens_total": seq})
    time.sleep(0.2)
"""


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    """One exporter for all tests that leave it running; frozen after 2 s."""
    return exporter_at("--no-gpu", "--ranks.frozen-after=2s")


@pytest.fixture
def witness(exporter: Any, request: pytest.FixtureRequest) -> Iterator[Any]:
    """A well-behaved rank that goes on through a test, and whose values must be exact and up after it."""
    speaker = exporter.speaker(run=f"witness-{request.node.name[:80]}", rank=3)
    assert speaker.hello() == {"ok": True, "last_step": None}
    speaker.state({"tokens_total": 100, "loss": 1.5})
    yield speaker
    labels = {"run": speaker.run, "rank": 3}

    def shown() -> Any:
        speaker.state({"tokens_total": 12345, "loss": 0.25}, step=77)  # each time: it is not to look frozen
        scrape = exporter.scrape()
        is_up = scrape.value("rank_up", **labels) == scrape.value("rank_state", state="running", **labels) == 1
        return scrape if is_up and scrape.value("train_tokens_total", **labels) == 12345 else None

    scrape = exporter.eventually(shown)
    assert scrape.value("train_loss", **labels) == 0.25
    assert scrape.value("train_step", **labels) == 77
    speaker.bye()
    speaker.close()


BAD_FRAMES = {
    "malformed": (b'{"v":1,"type":\n', "JSON"),
    "version": (b'{"v":2,"type":"state"}\n', "this exporter speaks v=1"),
    "type": (b'{"v":1,"type":"shout"}\n', "expected hello, state, box, bye, unrecorded or supervisor"),
    "invalid": (b'{"v":1,"type":"state","seq":"one","time":1}\n', "seq"),
    "oversized": (b'{"v":1,"pad":"' + b"x" * 70_000 + b'"}\n', "65536 bytes"),
    "no_hello": (b'{"v":1,"type":"state","seq":1,"time":1}\n', "say hello first"),
}


@pytest.mark.parametrize("reason", BAD_FRAMES)
def test_bad_frame(exporter: Any, witness: Any, reason: str) -> None:
    """A bad frame is counted once under its reason, its sender reads why, and the connection lives on."""
    data, words = BAD_FRAMES[reason]
    before = exporter.scrape().counted("frames_rejected", reason)
    rude = exporter.speaker(run=f"rude-{reason}")
    rude.raw(data)
    refusal = rude.answer()
    assert refusal["ok"] is False
    assert words in refusal["error"]
    assert exporter.scrape().counted("frames_rejected", reason) == before + 1
    assert rude.hello()["ok"] is True
    rude.bye()


BAD_SERIES = {
    "unknown_metric": [{"lossss": 1}],
    "wrong_type": [{"loss": "low"}],
    "bad_label": [{"collectives_total": {"all_gossip": 1}}],
    "counter_decrease": [{"samples_total": 10}, {"samples_total": 9}],
    "label_limit": [{"collective_enqueued": {str(i): 1 for i in range(k, k + 5000)}} for k in (0, 5000)],
    "unknown_phase": [{"phase_seconds_total": {"lunch": 1}}],
}


@pytest.mark.parametrize("reason", BAD_SERIES)
def test_bad_series(exporter: Any, witness: Any, reason: str) -> None:
    """A series that cannot be taken is counted; the rest of its frame is exact, the scrape bounded, the rank up."""
    rank = exporter.speaker(run=f"odd-{reason}")
    rank.hello()
    before = exporter.scrape().counted("series_dropped", reason)
    for metrics in BAD_SERIES[reason]:
        rank.state({"tokens_total": 5, **metrics})
    labels = {"run": rank.run, "rank": 0}
    exporter.eventually(lambda: exporter.scrape().value("train_step", **labels) == len(BAD_SERIES[reason]))
    scrape = exporter.scrape()
    expected = 10_000 - 2 * 32 if reason == "label_limit" else 1
    assert scrape.counted("series_dropped", reason) - before == expected
    assert scrape.value("train_tokens_total", **labels) == 5
    assert scrape.value("rank_up", **labels) == 1
    assert sum(f'run="{rank.run}"' in line for line in scrape.text.splitlines()) < 128
    if reason == "counter_decrease":
        assert scrape.value("train_samples_total", **labels) == 10
    rank.bye()


def test_a_run_of_another_uid(exporter: Any, witness: Any) -> None:
    """Another user's run of the same name is another run, also where the name is an id that seems to be unique."""
    if os.geteuid() != 0:
        pytest.skip("only root can connect as another user")
    own = exporter.speaker(run=UNIQUE)
    own.hello()
    os.seteuid(NOBODY)  # the kernel keeps the credentials of the moment of connect()
    try:
        namesake = exporter.speaker(run=witness.run, rank=4)
        intruder = exporter.speaker(run=UNIQUE, rank=1)
    finally:
        os.seteuid(0)
    assert intruder.hello(world_size=2) == {"ok": True, "last_step": None, "run": f"nobody/{UNIQUE}"}
    assert namesake.hello() == {"ok": True, "last_step": None, "run": f"nobody/{witness.run}"}
    scrape = exporter.scrape()
    for run, rank in ((witness.run, 4), (UNIQUE, 1)):
        assert scrape.value("rank_up", run=run, rank=rank) is None
        assert scrape.value("rank_up", run=f"nobody/{run}", rank=rank) == 1
    for speaker in (own, namesake, intruder):
        speaker.bye()


def test_a_living_rank_is_not_taken_over(exporter: Any, witness: Any) -> None:
    """Another process that claims a living rank in the same attempt is refused, and told by whom it is held."""
    rival = exporter.speaker(run=witness.run, rank=witness.rank)
    assert f"is held by pid {os.getpid()} in attempt 0" in rival.hello(pid=1)["error"]
    assert rival.answer() == {}


def test_a_flood_starves_nobody(exporter: Any, witness: Any) -> None:
    """While one connection sends as fast as it can, the others are exact, scrapes are answered, and it is cut short."""
    before = exporter.scrape()
    flooder = exporter.speaker(run="flood")
    flooder.hello()
    flood = json.dumps({"v": 1, "type": "state", "seq": 1, "time": 1, "metrics": {"loss": 1}}).encode() + b"\n"
    over = threading.Event()

    def send() -> None:
        with contextlib.suppress(OSError):
            while not over.is_set():
                flooder.raw(flood * 100)

    sender = threading.Thread(target=send)
    sender.start()
    rejected = before.counted("frames_rejected", "rate")

    def cut_short() -> bool:
        witness.state({"tokens_total": 100, "loss": 1.5})
        return exporter.scrape().counted("frames_rejected", "rate") > rejected + 1000

    try:
        exporter.eventually(cut_short)
    finally:
        over.set()
        flooder.socket.shutdown(2)
        sender.join()
    after = exporter.scrape()
    taken = after.value("exporter_frames_total") - before.value("exporter_frames_total")
    assert taken < after.counted("frames_rejected", "rate") - rejected
    dead = {"run": "flood", "rank": 0, "state": "dead"}
    exporter.eventually(lambda: exporter.scrape().value("rank_state", **dead) == 1)


def test_kill_is_seen_by_the_end_of_the_connection(exporter: Any, witness: Any) -> None:
    """A rank's SIGKILL is `rank_up` 0 and state dead, not a silence."""
    process = subprocess.Popen([sys.executable, "-c", RANK_PROCESS, exporter.socket, "killed"])
    labels = {"run": "killed", "rank": 0}
    exporter.eventually(lambda: exporter.scrape().value("train_tokens_total", **labels))
    process.kill()
    process.wait()
    exporter.eventually(lambda: exporter.scrape().value("rank_up", **labels) == 0)
    scrape = exporter.scrape()
    assert scrape.value("rank_state", state="dead", **labels) == 1
    assert scrape.value("train_tokens_total", **labels) > 0


def test_stop_is_frozen_not_dead(exporter: Any, witness: Any) -> None:
    """A SIGSTOPped rank becomes frozen and stays up; SIGCONT makes it run again; SIGKILL then makes it dead."""
    process = subprocess.Popen([sys.executable, "-c", RANK_PROCESS, exporter.socket, "stopped"])
    labels = {"run": "stopped", "rank": 0}
    try:
        exporter.eventually(lambda: exporter.scrape().value("train_tokens_total", **labels))
        process.send_signal(signal.SIGSTOP)

        def frozen() -> bool:
            witness.state({"tokens_total": 100})
            return exporter.scrape().value("rank_state", state="frozen", **labels) == 1

        exporter.eventually(frozen)
        assert exporter.scrape().value("rank_up", **labels) == 1
        process.send_signal(signal.SIGCONT)
        exporter.eventually(lambda: exporter.scrape().value("rank_state", state="running", **labels) == 1)
    finally:
        process.kill()
        process.wait()
    exporter.eventually(lambda: exporter.scrape().value("rank_state", state="dead", **labels) == 1)


@pytest.mark.parametrize(("outcome", "up"), [("finished", 1), ("failed", 0)])
def test_bye_is_its_own_state(exporter: Any, outcome: str, up: int) -> None:
    """After a bye and the end of file the rank is what it said, neither dead nor frozen."""
    speaker = exporter.speaker(run=f"bye-{outcome}")
    speaker.hello()
    speaker.state({"tokens_total": 1})
    speaker.bye(outcome=outcome, category="oom" if outcome == "failed" else "")
    speaker.close()
    labels = {"run": speaker.run, "rank": 0}
    exporter.eventually(lambda: exporter.scrape().value("rank_state", state=outcome, **labels) == 1)
    exporter.speaker(run="later").hello()  # answered after the end of file was read; that must change nothing
    scrape = exporter.scrape()
    assert scrape.value("rank_state", state=outcome, **labels) == 1
    assert scrape.value("rank_up", **labels) == up


def test_formats_over_http(exporter: Any) -> None:
    """The scrape is text, OpenMetrics or protobuf as asked for, gzipped where that is accepted, and says so."""
    status, headers, body = exporter.get("/metrics")
    assert (status, headers["content-type"]) == (200, TEXT.content_type)
    assert body.startswith(b"# HELP")
    _, headers, body = exporter.get("/metrics", Accept="application/openmetrics-text", Accept_Encoding="gzip")
    assert headers["content-type"] == OPENMETRICS.content_type
    assert headers["content-encoding"] == "gzip"
    assert gzip.decompress(body).endswith(b"# EOF\n")
    _, headers, _ = exporter.get("/metrics", Accept_Encoding="gzip;q=0, identity")
    assert "content-encoding" not in headers
    asked = "application/vnd.google.protobuf;proto=io.prometheus.client.MetricFamily;encoding=delimited"
    for encoding, read in (("identity", bytes), ("gzip", gzip.decompress)):
        _, headers, body = exporter.get("/metrics", Accept=f"{asked},text/plain;q=0.5", Accept_Encoding=encoding)
        assert (headers["content-type"], headers["vary"]) == (PROTOBUF.content_type, "Accept, Accept-Encoding")
        names = [family.name for family in families(read(body))]
        assert {"tachograph_exporter_info", "process_cpu_seconds_total"} <= set(names)


def test_health_pages(exporter: Any) -> None:
    """Both pages answer 200 and say what is so; the socket's mode lets other users' ranks in."""
    assert exporter.get("/-/healthy")[::2] == (200, b"healthy: the exporter answers\n")
    assert exporter.get("/-/ready")[::2] == (200, b"ready: ranks can connect; GPUs are left alone\n")
    assert exporter.socket.stat().st_mode & 0o777 == 0o666


def test_hostile_names_are_harmless(exporter: Any, witness: Any) -> None:
    """A run named like markup is text on the status page, and its log line stays one line."""
    name = '<script>alert("x")</script> level=error'
    hostile = exporter.speaker(run=name, uuid="<b>")
    assert hostile.hello()["ok"] is True
    hostile.state({"loss": "NaN"}, events=[{"id": 1, "kind": "<i>kind</i>", "time": 1.0}])
    hostile.bye(outcome="failed", category="<u>", message="\x1b[31m")
    exporter.eventually(lambda: "&lt;u&gt;" in exporter.ask("/")[1].decode())
    _, headers, body = exporter.get("/")
    page = body.decode()
    assert headers["content-type"] == "text/html; charset=utf-8"
    assert "default-src 'none'" in headers["content-security-policy"]
    assert "<script" not in page
    assert "&lt;script&gt;" in page
    assert "<i>kind" not in page
    assert "<u>" not in exporter.ask("/")[1].decode()
    assert f'run="root/{name}"'.replace('"x"', '\\"x\\"') in exporter.log.read_text()


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (("--socket={folder}/file",), "not a socket"),
        (("--socket={folder}/" + "x" * 120,), "at most 107 bytes"),
        (("--socket={folder}/file/deep/rank.sock",), "Not a directory"),
        (("--socket={folder}/s", "--web.listen-address=127.0.0.1:{taken}"), "address already in use"),
        (("--socket={folder}/s", "--web.listen-address=192.0.2.1:0"), "web.listen-address"),
    ],
)
def test_what_cannot_be_opened(exporter: Any, tmp_path: Any, flags: tuple[str, ...], words: str) -> None:
    """An address or socket that cannot be had is one readable line and status 1, and no file is harmed."""
    (tmp_path / "file").write_text("precious")
    filled = [flag.format(folder=tmp_path, taken=exporter.url.rpartition(":")[2]) for flag in flags]
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "exporter", "--no-gpu", "--log.level=error",
         "--web.listen-address=127.0.0.1:0", *filled], capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert done.returncode == 1
    assert words in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert (tmp_path / "file").read_text() == "precious"


def test_configuration_faults_are_told_at_once(tmp_path: Any) -> None:
    """Every fault of flags and file is listed with its place and what was expected; status 2, no traceback."""
    file = tmp_path / "tachograph.yaml"
    file.write_text("gpu:\n  interval: soon\nlimits:\n  rank: 3\n")
    done = subprocess.run(
        [sys.executable, "-m", "tachograph", "exporter", f"--config={file}", "--web.listen-address=10024", "--colour"],
        capture_output=True, text=True, check=False, timeout=90,
    )  # fmt: skip
    assert done.returncode == 2
    assert done.stderr.splitlines() == [
        "tachograph exporter: 4 faults in the configuration",
        "  --colour: no such flag: see tachograph exporter --help",
        f"  {file}:4: limits.rank: no such setting: did you mean limits.ranks?",
        "  --web.listen-address: '10024': expected host:port, :port or [ipv6]:port, with a port from 0 to 65535",
        f"  {file}:2: gpu.interval: 'soon': expected a duration from 100ms to 1m, such as 1s",
    ]


def test_the_folder_of_the_socket_is_deleted(exporter_at: Callable[..., Any]) -> None:
    """The exporter listens again by itself as soon as it can; until then its pages say why it does not."""
    with tempfile.TemporaryDirectory(prefix="t-") as name:
        folder = Path(name) / "run"
        exporter = exporter_at("--no-gpu", f"--socket={folder}/rank.sock")
        exporter.socket = folder / "rank.sock"
        assert exporter.scrape().value("exporter_collector_success", collector="socket") == 1
        shutil.rmtree(folder)
        folder.write_text("in the way")
        said = exporter.eventually(lambda: said if "rank.sock" in (said := unready(exporter)) else "")
        assert said.startswith("503 not ready: ")
        assert exporter.scrape().value("exporter_collector_success", collector="socket") == 0
        folder.unlink()
        exporter.eventually(lambda: not unready(exporter))
        assert exporter.speaker("back").hello()["ok"] is True
        assert exporter.scrape().value("exporter_collector_success", collector="socket") == 1
        exporter.end()


def unready(exporter: Any) -> str:
    """Return the status and the words of an exporter that is not ready; empty while it is."""
    try:
        exporter.get("/-/ready")
    except urllib.error.HTTPError as refused:
        with refused:
            return f"{refused.code} {refused.read().decode()}"
    return ""


def test_a_user_who_exceeds_a_share_is_counted(exporter: Any, witness: Any) -> None:
    """A sender of too many frames has a series of its own with its uid, and one line in the log."""
    flood = exporter.speaker("flood")
    flood.hello()
    flood.raw(b'{"v":1,"type":"state","seq":1,"time":1}\n' * 2000)
    over = {"user": os.getuid(), "resource": "frames"}
    exporter.eventually(lambda: (exporter.scrape().value("exporter_user_over_share_total", **over) or 0) > 100)
    lines = [line for line in exporter.log.read_text().splitlines() if "resource=frames" in line]
    assert len(lines) == 1
    assert f"uid={os.getuid()} " in lines[0]
