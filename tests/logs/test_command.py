"""`tachograph logs`: what it reads, what it prints, and its exit status."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import os
import re
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from tachograph.__main__ import main
from tachograph.logs import candidates, remote
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")

ROOT = "[rank3]: 2026-11-26 03:12:33,1 torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB\n"
CASCADE = "[rank{}]: 2026-11-26 03:22:3{},1 Some NCCL operations have failed or timed out.\n"
LOG = CASCADE.format(0, 1) + CASCADE.format(1, 2) + ROOT + "[rank2]: ERROR the plumbus is ajar\n"


def run(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, str, str]:
    status = main(["logs", *map(str, arguments)])
    said = capsys.readouterr()
    return status, said.out, said.err


def as_json(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> tuple[int, dict[str, Any]]:
    status, out, _ = run(capsys, "--json", *arguments)
    return status, conforms("logs", out)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    path = tmp_path / "run.log"
    path.write_text(LOG, encoding="utf-8")
    return path


def test_text(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The root first, with its evidence and the next steps; one line for each category of the rest; the unknown."""
    status, out, err = run(capsys, log)
    assert (status, err) == (0, "")
    said = out.replace(str(log), "run.log").splitlines()
    assert said[0] == f"Read 1 log, 4 lines, {len(LOG)} B, 4 ranks, 2026-11-26 03:12:33 to 2026-11-26 03:22:32"
    assert said[2:5] == [
        "CAUSE: out of memory, rank 3",
        "  run.log:3: 03:12:33  torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB",
        "  The GPU's memory did not suffice for what this rank wanted to allocate.",
    ]
    assert said[5] == "Next:"
    assert said[-4:] == [
        "Also, in the order of their times:",
        "  network (cascade): 2 lines, ranks 0-1 from 03:22:31: run.log:1: "
        "Some NCCL operations have failed or timed out.",
        "Errors that no row of the table knows: 1 kind",
        "  1 × run.log:4: ERROR the plumbus is ajar",
    ]


def test_json(log: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An object with the findings, the root first."""
    status, said = as_json(capsys, log)
    assert status == 0
    assert said["state"] == "cause"
    first = said["findings"][0]
    assert (first["category"], first["role"], first["rank"], first["line_number"]) == ("out_of_memory", "root", 3, 3)
    assert first["line"].startswith("torch.OutOfMemoryError")
    assert {one["role"] for one in said["findings"][1:]} == {"cascade", "unknown"}
    assert said["read"]["lines"] == 4


def test_a_healthy_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is wrong, which is no failure."""
    path = tmp_path / "run.log"
    path.write_text("[rank0]: step 1 loss 2.3\n" * 9, encoding="utf-8")
    status, out, _ = run(capsys, path)
    assert status == 0
    assert "NOTHING WRONG" in out


def test_cascades_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 3: something failed, and nothing says why."""
    path = tmp_path / "run.log"
    path.write_text(CASCADE.format(0, 1), encoding="utf-8")
    status, out, _ = run(capsys, path)
    assert status == 3
    assert "NO CAUSE FOUND" in out


def test_attempts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The root of each is told."""
    for attempt, line in enumerate((ROOT, "OSError: [Errno 28] No space left on device\n")):
        path = tmp_path / f"attempt_{attempt}" / str(3 - attempt) / "stderr.log"
        path.parent.mkdir(parents=True)
        path.write_text(line, encoding="utf-8")
    _, out, _ = run(capsys, tmp_path)
    at = out.splitlines().index("Attempts:")
    assert [line[:30] for line in out.splitlines()[at + 1 : at + 3]] == [
        "  0: out of memory, rank 3: to",
        "  1: storage, rank 2: OSError:",
    ]


@pytest.mark.parametrize(
    "pack", [gzip.compress, bz2.compress, lzma.compress, lambda text: text.decode().encode("utf-16")]
)
def test_packed_files(pack: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Known by their content; text of UTF-16 is read, too."""
    path = tmp_path / "run.log"
    path.write_bytes(pack(LOG.encode()))
    status, said = as_json(capsys, path)
    assert (status, said["findings"][0]["rank"], said["read"]["lines"]) == (0, 3, 4)


def test_a_packed_file_that_is_cut(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is read as far as it goes, and that is said."""
    path = tmp_path / "run.log.gz"
    path.write_bytes(gzip.compress(LOG.encode() + os.urandom(1 << 16).hex().encode() + b"\n")[:-20_000])
    status, said = as_json(capsys, path)
    assert (status, said["findings"][0]["rank"]) == (0, 3)
    (problem,) = said["problems"]
    assert not problem["skipped"]
    assert "lines" in problem["why"]


def test_what_cannot_be_read_is_named_and_counted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """And the rest is read."""
    (tmp_path / "run.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "latin.log").write_bytes("Schlüssel\n".encode("latin-1"))
    (tmp_path / "core").write_bytes(b"\x7fELF" + bytes(100))
    (tmp_path / "noise").write_bytes(bytes(range(256)))
    (tmp_path / "none.log").touch()
    (tmp_path / "old.log.zst").write_bytes(b"\x28\xb5\x2f\xfd0123")
    (tmp_path / "broken").symlink_to("/nonexistent")
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "empty").mkdir()
    (tmp_path / ".hidden").write_text(LOG, encoding="utf-8")
    out = run(capsys, tmp_path, tmp_path / "empty", tmp_path / "nowhere")[1]
    assert out.splitlines()[0].endswith("; 8 skipped")
    assert f"  skipped: {tmp_path}/broken: No such file or directory" in out
    status, said = as_json(capsys, tmp_path, tmp_path / "empty", tmp_path / "nowhere")
    assert status == 0
    assert {Path(one["name"]).name: (one["why"], one["skipped"]) for one in said["problems"]} == {
        "latin.log": ("not UTF-8: other letters than those of ASCII are replaced", False),
        "core": ("binary", True),
        "noise": ("binary", True),
        "none.log": ("empty", True),
        "old.log.zst": ("packed with zstd; unpack it first", True),
        "broken": ("No such file or directory", True),
        "pipe": ("not a regular file", True),
        "empty": ("no files in this folder", True),
        "nowhere": ("No such file or directory", True),
    }
    assert said["read"]["logs"] == 2


def test_a_log_with_holes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A log that was cut while it was open may have terabytes in which nothing was written: they take no time."""
    with (tmp_path / "run.log").open("wb") as file:
        file.seek(1 << 42)
        file.write(b"rank 1: starts\n")
        file.seek(2 << 42)
        file.write(LOG.encode())
        file.truncate(3 << 42)
    with (tmp_path / "hole.log").open("wb") as file:
        file.truncate(1 << 42)
    status, said = as_json(capsys, tmp_path)
    assert (status, said["findings"][0]["rank"], said["read"]["logs"]) == (0, 3, 1)
    assert said["read"]["lines"] >= 5
    assert [one["why"] for one in said["problems"]] == ["binary"]


def test_what_unpacks_to_far_too_much(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is read up to where no log would be, and that is said; what was before it counts."""
    path = tmp_path / "run.log.gz"
    endless = gzip.compress(bytes(16 << 20))
    path.write_bytes(gzip.compress(LOG.encode()) + endless * 40)
    status, said = as_json(capsys, path)
    assert (status, said["findings"][0]["rank"]) == (0, 3)
    (problem,) = said["problems"]
    assert "unpacks to more than 500 times its size" in problem["why"]
    assert said["read"]["bytes"] < 300 << 20


def test_a_packed_file_of_which_nothing_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is said to be well where nothing was read."""
    (tmp_path / "run.log.xz").write_bytes(lzma.compress(LOG.encode())[:30])
    status, out, err = run(capsys, tmp_path)
    assert (status, out) == (1, "")
    assert "after 0 lines" in err


def test_standard_input_that_is_closed(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """As `<&-` leaves it: one line."""
    monkeypatch.setattr("sys.stdin", None)
    assert run(capsys, "-") == (1, "", "tachograph logs: standard input: empty\n")


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_no_permission(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file or folder that may not be read is named."""
    (tmp_path / "closed.log").write_text(LOG, encoding="utf-8")
    (tmp_path / "closed.log").chmod(0)
    status, _, err = run(capsys, tmp_path)
    assert status == 1
    assert err == f"tachograph logs: {tmp_path}/closed.log: Permission denied\n"


def test_nothing_can_be_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 1, and what was tried."""
    status, out, err = run(capsys, tmp_path)
    assert (status, out) == (1, "")
    assert err == f"tachograph logs: {tmp_path}: no files in this folder\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "expected a PATH, --journal or --loki"),
        (["--loki", "http://loki"], "--loki and --query go together"),
        (["--query", "{}"], "--loki and --query go together"),
        (["--loki", "ftp://loki", "--query", "{}"], "--loki ftp://loki: expected HOST, HOST:PORT or a URL"),
        (["x", "--since", "yesterday"], "is not a duration"),
    ],
)
def test_wrong_arguments(arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Status 2, and what was expected."""
    status, _, err = run(capsys, *arguments)
    assert status == 2
    assert said in err


@pytest.mark.parametrize(("text", "status"), [(LOG.encode(), 0), (b"", 1), (bytes(50), 1)])
def test_standard_input(
    text: bytes, status: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With -; nothing or no text is a failure."""
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    found, out, err = run(capsys, "-")
    assert found == status
    assert ("CAUSE: out of memory, rank 3" in out) == (not status)
    assert err.startswith("tachograph logs: standard input: " if status else "")


def test_without_clustering(log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """Errors that no row knows are then put together by their text without numbers."""
    monkeypatch.setitem(sys.modules, "drain3", None)
    assert "CAUSE: out of memory, rank 3" in run(capsys, log)[1]


def test_without_its_extra(log: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """It says how to install it."""
    monkeypatch.setitem(sys.modules, "ahocorasick_rs", None)
    candidates.known_texts.cache_clear()
    status, out, err = run(capsys, log)
    assert (status, out) == (1, "")
    assert err.startswith("tachograph logs: ahocorasick_rs is not installed: pip install ")
    assert "[logs]" in err


@pytest.fixture
def journalctl(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    path = folder / "journalctl"
    monkeypatch.setenv("PATH", str(folder), prepend=os.pathsep)
    return path


def test_journal(journalctl: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The journal of a unit, by journalctl."""
    text = "NVRM: Xid (PCI:0000:18:00): 79, pid=1, GPU has fallen off the bus."
    entry = {"MESSAGE": text, "__REALTIME_TIMESTAMP": "1795662753500000", "_HOSTNAME": "node07"}
    (tmp_path / "entry").write_text(json.dumps(entry) + "\n", encoding="utf-8")
    journalctl.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/asked\ncat {tmp_path}/entry\n', encoding="utf-8")
    journalctl.chmod(0o755)
    status, said = as_json(capsys, "--journal", "kernel.slice", "--since", "2h")
    assert status == 0
    first = said["findings"][0]
    assert (first["category"], first["node"], first["line"], first["time"]) == (
        "hardware",
        "node07",
        text,
        1795662753.5,
    )
    assert "--output=json" in (tmp_path / "asked").read_text(encoding="utf-8")


def test_a_journal_that_cannot_be_had(journalctl: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What journalctl says."""
    journalctl.write_text("#!/bin/sh\necho 'No journal files were opened' >&2\nexit 1\n", encoding="utf-8")
    journalctl.chmod(0o755)
    status, _, err = run(capsys, "--journal")
    assert status == 1
    assert err == "tachograph logs: journal: journalctl: No journal files were opened\n"


class Loki(ThreadingHTTPServer):
    """Answers range queries from a list of (labels, nanoseconds, text), as many as are asked for."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), LokiHandler)
        self.lines: list[tuple[dict[str, str], int, str]] = []
        self.asked: list[dict[str, list[str]]] = []
        self.answer: tuple[int, bytes] | None = None


class LokiHandler(BaseHTTPRequestHandler):
    server: Loki

    def do_GET(self) -> None:
        query = parse_qs(urlsplit(self.path).query)
        self.server.asked.append(query)
        start, end, limit = (int(query[name][0]) for name in ("start", "end", "limit"))
        found = sorted(
            [one for one in self.server.lines if start <= one[1] < end], key=lambda one: one[1]
        )[:limit]  # fmt: skip
        streams = [{"stream": labels, "values": [[str(at), text]]} for labels, at, text in found]
        status, body = self.server.answer or (200, json.dumps({"data": {"result": streams}}).encode())
        self.send_response(status)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def loki() -> Iterator[Loki]:
    with Loki() as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server
        server.shutdown()
        thread.join()


def test_loki(loki: Loki, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """All pages are read; node and rank come from the labels where the lines do not say them."""
    import time

    monkeypatch.setattr(remote, "LOKI_PAGE", 3)
    now = time.time_ns() - 10**9
    loki.lines = [({"pod": "worker-0"}, now - 1000 + number, f"step {number}") for number in range(7)]
    loki.lines.append(({"pod": "worker-1", "rank": "9"}, now, "torch.OutOfMemoryError: CUDA out of memory"))
    url = f"http://127.0.0.1:{loki.server_address[1]}/"
    status, said = as_json(capsys, "--loki", url, "--query", '{job="a"}', "--since", "1h")
    assert status == 0
    first = said["findings"][0]
    assert (first["rank"], first["node"], first["time"]) == (9, "worker-1", pytest.approx(now / 1e9))
    assert len(loki.asked) > 2
    assert loki.asked[0]["query"] == ['{job="a"}']


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ((400, b"parse error at line 1"), "400 Bad Request: parse error at line 1"),
        ((200, b"<html>"), "an answer of another form"),
        ((200, b'{"data": {"result": [3]}}'), "an answer of another form"),
    ],
)
def test_a_loki_that_does_not_answer_as_expected(
    loki: Loki, answer: tuple[int, bytes], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line that says what it answered."""
    loki.answer = answer
    url = f"http://u:secret@127.0.0.1:{loki.server_address[1]}"
    status, _, err = run(capsys, "--loki", url, "--query", "{}")
    assert status == 1
    assert said in err
    assert "secret" not in err


def test_it_fits_a_terminal(log: Path, tmp_path: Path, fits: Callable[..., None]) -> None:
    """But for the line of the log that names the cause."""
    cause = f"  {re.escape(str(log))}:\\d+: "
    fits(lambda: main(["logs", str(log)]), cause)
    log.write_text("\n".join(CASCADE.format(rank, 1) for rank in range(64)), encoding="utf-8")
    fits(lambda: main(["logs", str(log), str(tmp_path / "nowhere")]), cause)
