"""`tachograph blackbox capture` and `collect`: what they ask, what they write, what they say, their exit status."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tachograph.__main__ import main
from tachograph.blackbox import served
from tachograph.blackbox.served import ServedBox
from tests.collect.pretender import NOBODY, Pretender
from tests.node.evidence.conftest import box, send_box
from tests.schemas import conforms

pytestmark = pytest.mark.usefixtures("wide")


def boxes(exporter: Any, run: str) -> list[dict[str, Any]]:
    """Return the boxes that an exporter lists of a run, its name as in an address."""
    found: list[dict[str, Any]] = conforms("api-blackbox", exporter.get(f"/api/blackbox/{run}")[2])["boxes"]
    return found


@pytest.fixture
def two_nodes(exporter_at: Callable[..., Any], ranks_at: Callable[..., Any]) -> tuple[list[str], list[Any]]:
    """Two exporters with two ranks each of one run, whose rank 1 is stuck: their unix sockets, and the ranks."""
    exporters = [exporter_at("--no-gpu", "--blackbox.ras=") for _ in range(2)]
    ranks = ranks_at(exporters[0], "root/a/r", {0: 4, 1: 3}) + ranks_at(exporters[1], "root/a/r", {2: 4, 3: 4})
    for one in exporters:
        one.eventually(lambda one=one: len(boxes(one, "root%2Fa%2Fr")) == 2)
    return [f"unix:{one.own}" for one in exporters], ranks


def test_collect_and_analyze(
    two_nodes: tuple[list[str], list[Any]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Boxes of two nodes come into one folder, closed to others, and the analysis names the rank and the line."""
    urls, _ = two_nodes
    out = tmp_path / "boxes"
    flags = [flag for url in urls for flag in ("--exporter", url)]
    assert main(["blackbox", "collect", "root/a/r", "--out", str(out), *flags]) == 0
    assert capsys.readouterr().out.startswith(f"4 boxes in {out} (")
    assert sorted(path.relative_to(out).as_posix() for path in out.rglob("*.json")) == [
        *(f"0/rank-{rank}.json" for rank in range(4)),
        "exporters.json",
    ]
    assert {path.stat().st_mode & 0o777 for path in out.rglob("*.json")} == {0o600}
    assert {path.stat().st_mode & 0o777 for path in (out, out / "0")} == {0o700}
    assert json.loads((out / "0/rank-3.json").read_text()) == box(3)
    assert main(["blackbox", "analyze", str(out)]) == 0
    assert "it stands at /home/u/data.py:88 load_shard" in capsys.readouterr().out


def test_through_prometheus(
    exporter_at: Callable[..., Any],
    ranks_at: Callable[..., Any],
    pretender: Pretender,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Without --exporter the exporters are those that had a rank of the run, at the addresses that are scraped."""
    exporters = [exporter_at("--no-gpu") for _ in range(2)]
    ranks_at(exporters[0], "root/a/r", {0: 4, 1: 3})
    ranks_at(exporters[1], "root/a/r", {2: 4, 3: 4})
    for one in exporters:
        one.eventually(lambda one=one: len(boxes(one, "root%2Fa%2Fr")) == 2)
    urls = [one.url for one in exporters]
    pretender.knows("root/a/r", *urls)
    asked = ["blackbox", "collect", "root/a/r", "--out", str(tmp_path), "--prometheus", f"http://{pretender.address}"]
    assert main([*asked, "--json"]) == 0
    said = conforms("blackbox-collect", capsys.readouterr().out)
    assert [(one["rank"], one["exporter"]) for one in said["boxes"]] == [
        (0, urls[0]), (1, urls[0]), (2, urls[1]), (3, urls[1]),
    ]  # fmt: skip
    assert any("tachograph_rank_info%7Brun%3D%22root%2Fa%2Fr%22%7D" in one for one in pretender.asked)


def test_an_unknown_run(pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A name that Prometheus does not know ends in one line with the nearest."""
    pretender.knows("llama-7b")
    asked = ["blackbox", "collect", "llama-7", "--out", str(tmp_path), "--prometheus", f"http://{pretender.address}"]
    assert main(asked) == 1
    assert "no run 'llama-7'" in (said := capsys.readouterr().err)
    assert "llama-7b" in said
    assert said.count("\n") == 1


def test_a_capture(two_nodes: tuple[list[str], list[Any]], capsys: pytest.CaptureFixture[str]) -> None:
    """Every rank is asked through its own connection, and the command ends once each has sent a newer box."""
    urls, ranks = two_nodes

    def answer(speaker: Any) -> None:
        assert speaker.answer() == {"ok": True, "capture": "asked for"}
        send_box(speaker, json.dumps(box(speaker.rank)), reason="asked for")

    threads = [threading.Thread(target=answer, args=(one,)) for one in ranks]
    for one in threads:
        one.start()
    flags = [flag for url in urls for flag in ("--exporter", url)]
    assert main(["blackbox", "capture", "root/a/r", "--json", *flags]) == 0
    for one in threads:
        one.join()
    said = conforms("blackbox-capture", capsys.readouterr().out)
    found = [(one["asked"], one["came"], one["missing"]) for one in said["exporters"]]
    assert found == [(2, [0, 1], []), (2, [2, 3], [])]
    assert said["ras"].endswith("not asked: blackbox.ras is empty")


def test_a_rank_that_does_not_answer(
    exporter_at: Callable[..., Any], ranks_at: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    """One that holds Python's lock sends nothing: after the wait it is named, with a status of its own."""
    exporter = exporter_at("--no-gpu", "--blackbox.ras=")
    first, _silent = ranks_at(exporter, "r", {0: 4, 1: 3})
    exporter.eventually(lambda: len(boxes(exporter, "r")) == 2)
    threading.Thread(target=lambda: first.answer() and send_box(first, "{}", reason="asked for")).start()
    own = f"unix:{exporter.own}"
    assert main(["blackbox", "capture", "r", "--wait", "2s", "--exporter", own, "--exporter", NOBODY]) == 3
    said = capsys.readouterr().out
    assert "1 of 2 ranks sent a box; not yet: rank 1" in said
    assert f"{NOBODY}: not asked: " in said


def test_who_may_not_read_a_run_collects_what_is_public(
    exporter_at: Callable[..., Any], ranks_at: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Over TCP without a password the boxes are without what is private, still name the line, and none is asked for."""
    exporter = exporter_at("--no-gpu", "--blackbox.ras=")
    ranks_at(exporter, "r", {0: 4, 1: 3, 2: 4, 3: 4})
    exporter.eventually(lambda: len(boxes(exporter, "r")) == 4)
    assert main(["blackbox", "capture", "r", "--exporter", exporter.url]) == 1
    assert "403 Forbidden: it is for the run's owner and the site's readers" in capsys.readouterr().out
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path / "boxes"), "--exporter", exporter.url]) == 0
    assert not {"log", "environment"} & json.loads((tmp_path / "boxes/0/rank-3.json").read_text()).keys()
    assert main(["blackbox", "analyze", str(tmp_path / "boxes")]) == 0
    assert "it stands at /home/u/data.py:88 load_shard" in capsys.readouterr().out


def test_nobody_to_ask(exporter_at: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Without a connected rank of the run there is nothing to ask, and that is status 1."""
    assert main(["blackbox", "capture", "none", "--exporter", exporter_at("--no-gpu").url]) == 1
    assert "it has nothing of this run" in capsys.readouterr().out


def test_what_is_missing_is_said(
    exporter_at: Callable[..., Any], ranks_at: Callable[..., Any], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ranks without a box and exporters that cannot be asked are named; the others' boxes are there."""
    exporter = exporter_at("--no-gpu")
    ranks_at(exporter, "r", {0: 4, 2: 4})
    exporter.eventually(lambda: len(boxes(exporter, "r")) == 2)
    flags = ["--exporter", exporter.url, "--exporter", NOBODY]
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path / "o"), *flags]) == 3
    said = capsys.readouterr().out
    assert "No box anywhere: ranks 1, 3" in said
    assert f"http://{NOBODY}: not asked: " in said
    assert main(["blackbox", "collect", "none", "--out", str(tmp_path / "p"), "--exporter", exporter.url]) == 1


def test_what_an_exporter_knows_of_a_rank_without_a_box(
    pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """One that holds Python's lock leaves none: its exporter has its line, and so has the analysis of the folder."""
    locked = {
        "rank": 1, "state": "frozen", "step": 3, "phase": "data", "phase_seconds": 41.0, "gpu": "1", "coordinates": {},
        "where": "/home/u/index.py:12 build",
    }  # fmt: skip
    others = (0, 2, 3)
    texts = {rank: json.dumps(box(rank)).encode() for rank in others}
    boxes = (ServedBox(0, rank, 100.0, "", 10) for rank in others)
    pretender.has("r", *boxes, texts=texts, ranks=[locked], world_size=4)
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), "--exporter", pretender.address]) == 3
    assert main(["blackbox", "analyze", str(tmp_path)]) in (0, 3)
    assert "by its exporter frozen, step 3, at /home/u/index.py:12 build" in capsys.readouterr().out
    (tmp_path / served.KNOWN_FILE).write_text('[{"version": 1, "ranks": 7}]')
    assert main(["blackbox", "analyze", str(tmp_path)]) in (0, 3)
    assert "by its exporter" not in capsys.readouterr().out


HOSTILE: dict[str, Any] = {
    "attempt": [{"attempt": "../../x", "rank": 0, "time": 1, "reason": "", "size": 1}],
    "rank": [{"attempt": 0, "rank": "0/../../../x", "time": 1, "reason": "", "size": 1}],
    "negative": [{"attempt": 0, "rank": -1, "time": 1, "reason": "", "size": 1}],
    "huge": [{"attempt": 10**30, "rank": 0, "time": 1, "reason": "", "size": 1}],
    "time": [{"attempt": 0, "rank": 0, "time": "NaN", "reason": "", "size": 1}],
    "nothing": [{}],
    "no list": 7,
}


@pytest.mark.parametrize("boxes", HOSTILE.values(), ids=HOSTILE)
def test_names_from_the_network_are_no_paths(
    boxes: Any, pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An index with anything but numbers is refused whole: nothing is written by it."""
    pretender.has("r", boxes=boxes)
    out = tmp_path / "a/b/out"
    assert main(["blackbox", "collect", "r", "--out", str(out), "--exporter", pretender.address]) == 1
    assert "no index of a tachograph exporter" in capsys.readouterr().out
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (b"x" * (served.LARGEST_BOX + 1), "larger than"), (b"not json", "not JSON"), (b"[]", "not an object"),
        (b'{"rank": 5}', "of rank 5"), (b'{"rank": "\x1b[2J"}', "not JSON"),
        (b'{"rank": "\\u001b[2J"}', "of rank ?[2J"),
        (b"[" * 100_000, "not JSON"),
    ],
)  # fmt: skip
def test_a_box_that_is_none(
    text: bytes, why: str, pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """What an exporter gives for a box is looked at before it is written; the other rank's is there."""
    own = [ServedBox(0, rank, 100.0, "", 10) for rank in range(2)]
    pretender.has("r", *own, texts={0: text, 1: b'{"rank": 1}'})
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), "--exporter", pretender.address]) == 3
    said = capsys.readouterr().out
    assert "rank 0: not fetched: " in said
    assert why in said
    assert "\x1b" not in said
    assert [path.name for path in tmp_path.rglob("rank-*")] == ["rank-1.json"]


def test_the_newest_box_of_a_rank(pretender: Pretender, other: Pretender, tmp_path: Path) -> None:
    """A rank that moved to another node is on two exporters: its newest box of an attempt counts."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: b'{"rank": 0, "old": 1}'})
    other.has("r", ServedBox(0, 0, 200.0, "", 10), texts={0: b'{"rank": 0, "new": 1}'})
    flags = ["--exporter", pretender.address, "--exporter", other.address]
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), *flags]) == 0
    assert (tmp_path / "0/rank-0.json").read_text() == '{"rank": 0, "new": 1}'


def test_what_ras_said(pretender: Pretender, tmp_path: Path) -> None:
    """What NCCL's service said is a file beside the boxes, which the analysis leaves alone."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: json.dumps(box(0, world_size=1)).encode()}, ras="json")
    pretender.answers[served.ras_path("r")] = (200, b'{"nccl_version": "2.28.3", "entries": []}')
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), "--exporter", pretender.address]) == 0
    assert (tmp_path / "ras.json").read_bytes() == b'{"nccl_version": "2.28.3", "entries": []}'
    assert main(["blackbox", "analyze", str(tmp_path)]) in (0, 3)


@pytest.mark.parametrize("in_the_way", ["file", "link", "closed"])
def test_a_folder_that_cannot_be_had(
    in_the_way: str, pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A file or a link where a folder must be is an error in one line; nothing is written through a link."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: b'{"rank": 0}'})
    out = tmp_path / "out"
    if in_the_way == "file":
        out.touch()
    elif in_the_way == "link":
        out.mkdir()
        (tmp_path / "elsewhere").mkdir()
        (out / "0").symlink_to(tmp_path / "elsewhere")
    else:
        out.mkdir()
        (out / "0").touch()
    assert main(["blackbox", "collect", "r", "--out", str(out), "--exporter", pretender.address]) == 1
    assert capsys.readouterr().err.startswith(f"tachograph blackbox: {out}: ")
    assert list(tmp_path.rglob("rank-0.json")) == []


def test_a_file_that_is_a_link_is_replaced(pretender: Pretender, tmp_path: Path) -> None:
    """A link with the name of a box is replaced, and what it leads to is left alone."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: b'{"rank": 0}'})
    (tmp_path / "0").mkdir()
    (tmp_path / "mine").write_text("mine")
    (tmp_path / "0/rank-0.json").symlink_to(tmp_path / "mine")
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), "--exporter", pretender.address]) == 0
    assert (tmp_path / "mine").read_text() == "mine"
    assert not (tmp_path / "0/rank-0.json").is_symlink()


def test_a_password_is_asked_for(pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An exporter that wants one is named with what to do, and no password is ever shown."""
    pretender.answers[served.index_path("r")] = (401, b"")
    exporter = f"http://me:geheim@{pretender.address}"
    assert main(["blackbox", "collect", "r", "--out", str(tmp_path), "--exporter", exporter]) == 1
    said = capsys.readouterr().out
    assert "give it in ~/.netrc" in said
    assert "geheim" not in said


def test_places(pretender: Pretender, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With --prometheus each culprit has its node, GPU and coordinates; without an answer the verdict stands alone."""
    for rank, calls in ((0, 4), (1, 3), (2, 4), (3, 4)):
        (tmp_path / f"rank-{rank}.json").write_text(json.dumps(box(rank, calls, run="r")))
    place = {"run": "r", "rank": "1", "instance": "node-27", "gpu": "5", "dp": "7", "pp": "", "attempt": "0"}
    series = {"metric": place, "value": [1.0, "1"]}
    pretender.answers["/api/v1/query"] = (200, json.dumps({"status": "success", "data": {"result": [series]}}).encode())
    asked = ["blackbox", "analyze", str(tmp_path), "--prometheus", f"http://{pretender.address}"]
    assert main(asked) == 0
    assert "  rank 1 (node-27, GPU 5, dp 7): stuck on the host" in capsys.readouterr().out
    assert main([*asked, "--json"]) == 0
    (culprit,) = conforms("blackbox-analyze", capsys.readouterr().out)["culprits"]
    assert (culprit["node"], culprit["gpu"], culprit["coordinates"]) == ("node-27", "5", {"dp": 7})
    assert main(["blackbox", "analyze", str(tmp_path), "--prometheus", f"http://{NOBODY}"]) == 0
    said = capsys.readouterr()
    assert "HELD UP BY: rank 1" in said.out
    assert "without the places of ranks: no Prometheus" in said.err


@pytest.mark.parametrize(
    "words",
    [
        ["capture"], ["capture", "r", "--wait", "0s"], ["capture", "r", "--exporter", "ftp://x"], ["collect", "r"],
        ["collect", "--out", "x"],
    ],
)  # fmt: skip
def test_wrong_arguments(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    """Wrong arguments have status 2; the help of each command has its exit statuses."""
    assert main(["blackbox", *words]) == 2
    capsys.readouterr()
    assert main(["blackbox", words[0], "--help"]) == 0
    assert f"exit status of {words[0]}:" in capsys.readouterr().out


def test_a_reader_who_leaves(pretender: Pretender, tmp_path: Path) -> None:
    """Into a pipe that is closed, the command ends without a word."""
    own = [ServedBox(0, rank, 100.0, "x" * 200, 10) for rank in range(20)]
    pretender.has("r", *own)
    command = [sys.executable, "-m", "tachograph", "blackbox", "collect", "r", "--out", str(tmp_path), "--json",
               "--exporter", pretender.address]  # fmt: skip
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert process.stderr.read() == b""
    assert process.wait(60) == 141


def test_they_fit_a_terminal(pretender: Pretender, tmp_path: Path, fits: Callable[..., None]) -> None:
    """But for the command to run next: with an exporter that wants a password, and one that nobody is at."""
    pretender.has("r", ServedBox(0, 0, 100.0, "", 10), texts={0: b'{"rank": 0}'}, world_size=9)
    pretender.answers[served.capture_path("r")] = (401, b"")
    flags = ["--exporter", pretender.address, "--exporter", NOBODY]
    fits(lambda: main(["blackbox", "collect", "r", "--out", str(tmp_path), *flags]), "Next: ")
    fits(lambda: main(["blackbox", "capture", "r", "--wait", "1s", *flags]))
