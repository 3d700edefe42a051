"""What an exporter serves of the boxes of its ranks: the index, the boxes, a capture, and the page."""

from __future__ import annotations

import json
import re
import socket
import threading
import time
import urllib.parse
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from tachograph.blackbox import served
from tests.node.conftest import OwnConnection
from tests.node.evidence.conftest import box, send_box

ALLOWED_TAGS = {
    "html", "head", "meta", "title", "style", "body", "header", "h1", "h2", "span", "bdi", "nav", "a", "main",
    "div", "p", "table", "caption", "thead", "tbody", "tr", "th", "td", "code", "ul", "li", "form", "button",
    "section",
}  # fmt: skip
HOSTILE = "\"><script>alert(1)</script><img src=x onerror=alert(1)>\x1b[2J\u202e' javascript:"


class Tags(HTMLParser):
    """Collects the tags, the addresses and the visible text of a page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.feed(html)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.add(tag)
        self.attributes |= {name for name, _ in attrs}
        self.links += [value or "" for name, value in attrs if name in ("href", "action")]

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    return exporter_at("--no-gpu", "--blackbox.ras=")


@pytest.fixture
def run(request: pytest.FixtureRequest) -> str:
    """Return the name of a run as it is shown: root's, with its owner, as it has a slash."""
    return f"root/run/{request.node.name[:60]}"


def boxes_arrived(exporter: Any, run: str, count: int) -> served.ServedRun:
    def arrived() -> served.ServedRun | None:
        code, body = exporter.ask(served.index_path(run))
        index = served.read_run(body) if code == 200 else None
        return index if index is not None and len(index.boxes) == count else None

    found: served.ServedRun = exporter.eventually(arrived)
    return found


def test_the_index_and_the_boxes(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """The index names what is here, and each box comes as its rank sent it; a run with a slash is one run."""
    before = time.time()
    ranks_at(exporter, run, {0: 4, 3: 4})
    index = boxes_arrived(exporter, run, 2)
    assert (index.run, index.world_size) == (run, 4)
    reason = "no step for 41 s"
    assert [(one.attempt, one.rank, one.reason) for one in index.boxes] == [(0, 0, reason), (0, 3, reason)]
    assert all(before <= one.time <= time.time() for one in index.boxes)
    assert [(one.rank, one.state) for one in index.ranks] == [(0, "running"), (3, "running")]
    code, body = exporter.ask(served.box_path(run, 0, 3))
    assert (code, json.loads(body)) == (200, box(3))
    assert index.boxes[1].size == len(body)


def test_a_slash_may_be_plain(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """An address with the name as a person writes it works, too."""
    ranks_at(exporter, run, {0: 4})
    boxes_arrived(exporter, run, 1)
    for path in (f"/api/blackbox/{run}", f"/api/blackbox/{run}/0/rank-0.json", f"/blackbox/{run}"):
        assert exporter.ask(urllib.parse.quote(path))[0] == 200


@pytest.mark.parametrize(
    "path",
    [
        "/api/blackbox/none", "/api/blackbox/none/0/rank-0.json", "/api/blackbox/none/ras", "/blackbox/none",
        "/api/blackbox/", "/blackbox/", "/api/blackbox/none/0/rank-99999999999999.json",
        "/api/blackbox/..%2f..%2fetc%2fpasswd", "/blackbox/%00", "/blackbox/%ff", "/blackbox/" + "x" * 3000,
    ],
)  # fmt: skip
def test_what_is_not_here(exporter: Any, path: str) -> None:
    """What no rank has sent is not found, whatever the path."""
    assert exporter.ask(path)[0] == 404


def test_a_stranger_sees_no_log(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """Over TCP, from loopback too, a rank's log, environment and texts of failures are left out."""
    ranks_at(exporter, run, {0: 4})
    boxes_arrived(exporter, run, 1)
    _, body = exporter.stranger(served.box_path(run, 0, 0))
    whole = box(0)
    assert json.loads(body) == {key: whole[key] for key in whole.keys() - {"log", "environment"}} | {
        "failure": {"category": "oom"}
    }


def test_the_page_names_the_line(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """Its first sentence says who, why and at which line."""
    ranks_at(exporter, run, {0: 4, 1: 3, 2: 4, 3: 4})
    boxes_arrived(exporter, run, 4)

    def page() -> str | None:
        code, body = exporter.ask(served.page_path(run))
        assert code == 200
        return None if b"http-equiv" in body else body.decode()

    html: str = exporter.eventually(page)
    first = Tags(html[html.index('class="verdict"') :].partition("</p>")[0]).text
    assert first.startswith('class="verdict">Rank 1 (')
    assert "it stands at /home/u/data.py:88 load_shard; " in first
    assert first.endswith("; others called it at /home/u/train.py:140 backward")
    assert "does not fetch" not in html
    assert Tags(html).tags <= ALLOWED_TAGS


def test_a_rank_that_cannot_send_a_box(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """One that others wait for is named without a box, too, with the line of its last state."""
    ranks_at(exporter, run, {0: 4, 2: 4, 3: 4})
    silent = exporter.speaker(run=run.removeprefix("root/"), rank=1, world_size=4)
    assert silent.hello()["ok"]
    silent.state(where="data.py:7 decode")
    boxes_arrived(exporter, run, 3)

    def page() -> str | None:
        body = exporter.ask(served.page_path(run))[1].decode()
        return body if "data.py:7 decode" in body else None

    html: str = exporter.eventually(page)
    verdict = html[html.index('class="verdict"') :].partition("</p>")[0]
    assert "Rank 1 (" in verdict
    assert "by its exporter running, step 1, at data.py:7 decode" in verdict


def test_the_ranks_of_other_nodes_are_missed(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """Without --blackbox.peers the page says which ranks are elsewhere, and how to have them."""
    ranks_at(exporter, run, {0: 4, 1: 3, 2: 4})
    boxes_arrived(exporter, run, 3)

    def page() -> str | None:
        body = exporter.ask(served.page_path(run))[1].decode()
        return body if "not here" in body else None

    assert "does not fetch: rank 3." in exporter.eventually(page)


def test_hostile_texts(exporter: Any) -> None:
    """No text that a rank chose becomes a tag, an attribute or a link of the page."""
    run = "root/" + HOSTILE.replace("\x1b", "").replace("\u202e", "")
    speakers = [exporter.speaker(run=run.removeprefix("root/"), rank=rank, world_size=4) for rank in range(4)]
    for rank, speaker in enumerate(speakers):
        assert speaker.hello()["ok"], speaker
        group = {"0": {"ranks": [0, 1, 2, 3]}, HOSTILE: {"ranks": [0, 1]}}
        whole = box(rank, 3 if rank == 1 else 4, where=HOSTILE, groups=group)
        whole["recorders"]["nccl"]["entries"][-1]["profiling_name"] = f"nccl:{HOSTILE}"  # type: ignore[index]
        send_box(speaker, json.dumps(whole), reason=HOSTILE)
    boxes_arrived(exporter, run, 4)

    def page() -> str | None:
        code, body = exporter.ask(served.page_path(run))
        return body.decode() if code == 200 and b"http-equiv" not in body else None

    html: str = exporter.eventually(page)
    found = Tags(html)
    assert "<script>alert(1)</script>" in found.text
    assert found.tags <= ALLOWED_TAGS
    assert not {name for name in found.attributes if name.startswith("on")}
    assert all(link.startswith("/") and not link.startswith("//") for link in found.links)
    assert "\x1b" not in html
    assert "\u202e" not in html
    assert "script-src" not in (policy := exporter.get(served.page_path(run))[1]["content-security-policy"])
    assert "default-src 'none'" in policy


def test_a_capture(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """Each connected rank is asked once, however often somebody asks within ten seconds."""
    first, second = ranks_at(exporter, run, {0: 4, 1: 4})
    boxes_arrived(exporter, run, 2)
    answers = [json.loads(exporter.ask(served.capture_path(run), "POST")[1]) for _ in range(3)]
    assert [one["asked"] for one in answers] == [2, 2, 2]
    assert len({one["time"] for one in answers}) == 1
    for speaker in (first, second):
        assert speaker.answer() == {"ok": True, "capture": "asked for"}
        speaker.bye()
    assert exporter.ask(served.capture_path("none"), "POST")[0] == 404


def test_another_site_cannot_ask(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """A page elsewhere may make a browser post here with the user's password: that is refused."""
    ranks_at(exporter, run, {0: 4})
    boxes_arrived(exporter, run, 1)
    path = served.capture_path(run)
    assert exporter.ask(path, "POST", Origin="https://evil.example")[0] == 403
    assert exporter.ask(path, "POST", Sec_Fetch_Site="cross-site")[0] == 403
    assert exporter.ask(path, "POST", Origin="http://localhost", Sec_Fetch_Site="same-origin")[0] == 200


def test_captures_take_nothing_from_what_was_left(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """The box of a standstill stays where it was, and counts; what is asked for is beside it until the rank goes on."""
    (speaker,) = ranks_at(exporter, run, {0: 4})
    boxes_arrived(exporter, run, 1)
    for number in range(12):
        send_box(speaker, json.dumps({**box(0), "number": number}), reason="asked for")
    index = boxes_arrived(exporter, run, 2)
    assert [(one.reason, one.asked, one.past) for one in index.boxes] == [
        ("no step for 41 s", False, False), ("asked for", True, False),
    ]  # fmt: skip
    left, asked = served.box_path(run, 0, 0), served.box_path(run, 0, 0, asked=True)
    assert json.loads(exporter.ask(left)[1]) == box(0)
    exporter.eventually(lambda: json.loads(exporter.ask(asked)[1]).get("number") == 11)
    assert served.current({"": index}) == [("", index.boxes[0])]
    speaker.state(progress_time=time.time())
    exporter.eventually(lambda: served.read_run(exporter.ask(served.index_path(run))[1]).boxes[0].past)
    index = served.read_run(exporter.ask(served.index_path(run))[1])
    assert served.current({"": index}) == [("", index.boxes[1])]
    assert exporter.ask(left)[0] == 200


def test_only_a_requested_box_is_at_both_addresses(exporter: Any, run: str) -> None:
    """Where a rank has left nothing by itself, its address has what was asked for."""
    speaker = exporter.speaker(run=run.removeprefix("root/"), world_size=4)
    assert speaker.hello()["ok"]
    send_box(speaker, json.dumps(box(0)), reason="asked for")
    boxes_arrived(exporter, run, 1)
    answers = [exporter.ask(served.box_path(run, 0, 0, asked=asked)) for asked in (False, True)]
    assert answers == [(200, json.dumps(box(0)).encode())] * 2
    assert exporter.ask(served.box_path(run, 1, 0, asked=True))[0] == 404


def test_a_person_is_led_back(exporter: Any, run: str, ranks_at: Callable[..., Any]) -> None:
    """The button on the page ends at the page."""
    ranks_at(exporter, run, {0: 4})
    boxes_arrived(exporter, run, 1)
    connection = OwnConnection(exporter.own)
    connection.request("POST", served.capture_path(run), headers={"Accept": "text/html,*/*"})
    response = connection.getresponse()
    assert (response.status, response.headers["Location"]) == (303, served.page_path(run))
    connection.close()


def test_hostile_boxes_do_not_slow_a_scrape(exporter: Any, run: str) -> None:
    """While the page of a run with boxes that are hard to read is made, a scrape is answered as ever."""
    hard = json.dumps({"recorders": {"nccl": {"entries": [{"process_group": [str(n)]} for n in range(16_000)]}}})
    assert len(hard) < 1 << 19
    for rank in range(8):
        speaker = exporter.speaker(run=run.removeprefix("root/"), rank=rank, world_size=8)
        assert speaker.hello()["ok"]
        send_box(speaker, hard)
    boxes_arrived(exporter, run, 8)
    done = threading.Event()

    def ask() -> None:
        exporter.ask(served.page_path(run))
        done.set()

    threading.Thread(target=ask).start()
    while not done.is_set():
        assert exporter.get("/-/healthy")[0] == 200
    assert exporter.get("/metrics")[0] == 200


@pytest.fixture
def ras() -> Iterator[tuple[str, list[bytes]]]:
    """A RAS service that answers once, and what it was asked."""
    listening = socket.create_server(("127.0.0.1", 0))
    said: list[bytes] = []

    def serve() -> None:
        connection, _ = listening.accept()
        with connection, connection.makefile("rwb") as stream:
            for line in stream:
                said.append(line)
                if line == b"VERBOSE STATUS\n":
                    stream.write(b'{"nccl_version": "2.28.3"}')
                    return
                stream.write(b"SERVER PROTOCOL 2\n" if line.startswith(b"CLIENT") else b"OK\n")
                stream.flush()

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listening.getsockname()[1]}", said
    listening.close()


def test_ras_is_asked_at_a_capture_alone(
    exporter_at: Callable[..., Any], ras: tuple[str, list[bytes]], ranks_at: Callable[..., Any]
) -> None:
    """NCCL's service is asked when a capture says so, never before; its answer is served as it came."""
    address, said = ras
    exporter = exporter_at("--no-gpu", f"--blackbox.ras={address}")
    ranks_at(exporter, "r", {0: 4})
    boxes_arrived(exporter, "r", 1)
    exporter.ask(served.page_path("r"))
    exporter.ask(served.capture_path("r"), "POST")
    assert served.read_run(exporter.ask(served.index_path("r"))[1]).ras_said == ""
    assert said == []
    assert exporter.ask(served.ras_path("r"))[0] == 404
    assert exporter.ask(served.capture_path("r", ras=True), "POST")[0] == 200

    def answered() -> bool:
        return served.read_run(exporter.ask(served.index_path("r"))[1]).ras == "json"

    exporter.eventually(answered)
    assert exporter.ask(served.ras_path("r")) == (200, b'{"nccl_version": "2.28.3"}')
    assert said[-1] == b"VERBOSE STATUS\n"


def test_the_boxes_of_other_nodes(
    exporter_at: Callable[..., Any], ranks_at: Callable[..., Any], tmp_path: Path
) -> None:
    """With --blackbox.peers the boxes of the others are in the verdict; one that does not answer is named."""
    far = exporter_at("--no-gpu")
    targets = tmp_path / "targets.yml"
    nobody = "127.0.0.1:1"
    targets.write_text(f"- targets: ['{urllib.parse.urlsplit(far.url).netloc}', '{nobody}']\n")
    near = exporter_at("--no-gpu", f"--blackbox.peers={targets}")
    ranks_at(far, "r", {0: 4, 1: 3})
    ranks_at(near, "r", {2: 4, 3: 4})
    boxes_arrived(far, "r", 2)
    boxes_arrived(near, "r", 2)

    def page() -> str | None:
        body = near.ask(served.page_path("r"))[1].decode()
        return None if "http-equiv" in body else body

    html: str = near.eventually(page)
    assert re.search(r"Rank 1 \([^)]+\): stuck on the host", html)
    assert f"http://{nobody} did not give its boxes: Connection refused" in html
    assert "does not fetch" not in html
