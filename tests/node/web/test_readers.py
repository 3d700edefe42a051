"""Who may read what is private of a run: its owner and the site's readers, by the kernel or a password, nobody else."""

from __future__ import annotations

import encodings.idna  # noqa: F401  # every connection needs it, and another user may not read where Python is
import grp
import json
import os
import signal
import socket
import ssl
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from tachograph.blackbox import served
from tachograph.blackbox.own_box import is_one
from tachograph.client.blackbox.box import make_box
from tachograph.client.core.misuse import Misuse
from tachograph.client.hello.identity import Identity
from tachograph.client.hello.workload import Workload
from tachograph.client.transport.rank_state import RankState
from tachograph.node.web.private import PUBLIC_OF_BOX, public_box
from tachograph.node.web.readers import PeerUser, Reader, SiteReaders, read_site_readers
from tachograph.servers.http_client import _own_exporter
from tachograph.servers.server_address import DEFAULT_PORT
from tachograph.top.command import main as top
from tachograph.top.node_source import NodeSource, default_exporter
from tachograph.watch.private_exporter import private_exporter
from tests.node.conftest import DEADLINE, Speaker
from tests.node.evidence.conftest import send_box

ALICE, BOB, CAROL, DAVE, NOBODY = 41001, 41002, 41003, 41004, 65534
ONCALL = 42000
PRIVATE = ("SECRETMSG", "SECRETENV", "SECRETLOG", "secret_project", "SECRETPATH", "SECRETNOTICE")
BOX = {
    "rank": 0, "where": "train.py:88 load", "reason": "no step for 41 s", "world_size": 1, "attempt": 0,
    "stacks": [{"threads": ["m"], "lines": ["/home/alice/secret_project/train.py:3 f"]}],
    "failure": {"category": "data", "message": "SECRETMSG", "lines": ["/home/alice/secret_project/x.py:1 f"]},
    "environment": {"variables": {"NCCL_X": "SECRETENV"}}, "log": ["SECRETLOG line"], "unreadable": ["SECRETMSG"],
    "job": {"job_id": "1"}, "added_later": "SECRETENV",
    "recorders": {"nccl": {"version": "2.9", "entries": [{
        "collective_seq_id": 1, "profiling_name": "nccl:all_reduce", "state": "started",
        "frames": [{"name": "f", "filename": "/home/alice/secret_project/train.py", "line": 3},
                   {"name": "g", "filename": "/home/alice/secret_project/site-packages/torch/a.py", "line": 4}],
    }]}},
}  # fmt: skip

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users")


@contextmanager
def acting_as(uid: int, *gids: int) -> Iterator[None]:
    """Be another user: the kernel tells a server who connected."""
    before = os.getgroups()
    os.setgroups(gids)
    os.setegid(gids[0] if gids else uid)
    os.seteuid(uid)
    try:
        yield
    finally:
        os.seteuid(0)
        os.setegid(0)
        os.setgroups(before)


@pytest.fixture(scope="module")
def exporter(exporter_at: Callable[..., Any]) -> Any:
    """An exporter of root with a run of alice, whose rank has left a box, a notice and the text of an exception."""
    exporter = exporter_at("--no-gpu", "--run.owner=never", "--blackbox.ras=", f"--web.readers={CAROL},%{ONCALL}")
    with acting_as(ALICE):
        speaker = exporter.speaker("llama", world_size=2)
    assert speaker.hello()["ok"]
    speaker.state(where="train.py:1 f", notices=["hello SECRETNOTICE"])
    with acting_as(ALICE):
        failed = exporter.speaker("llama", 1, world_size=2)
    assert failed.hello()["ok"]
    failed.bye(outcome="failed", category="data", message="FileNotFoundError: /home/alice/SECRETPATH")
    send_box(speaker, json.dumps(BOX))
    exporter.eventually(lambda: served.read_run(exporter.ask(served.index_path("llama"))[1]).boxes)
    exporter.eventually(lambda: "SECRETPATH" in exporter.ask("/api/node")[1].decode())
    return exporter


def private_in(ask: Callable[..., tuple[int, bytes]], **headers: str) -> set[str]:
    """Return what is private in the pages that a reader gets."""
    found = set()
    for path in (served.box_path("llama", 0, 0), "/api/node", "/", served.page_path("llama")):
        deadline = time.monotonic() + DEADLINE
        status, body = ask(path, **headers)
        while b"train.py:" not in body and time.monotonic() < deadline:  # the analysis is made beside the pages
            time.sleep(0.05)
            status, body = ask(path, **headers)
        assert status == 200, path
        assert b"train.py:" in body, path
        found |= {word for word in PRIVATE if word.encode() in body}
    return found


@needs_root
@pytest.mark.parametrize(
    ("uid", "gids", "reads"),
    [
        (0, (), True), (ALICE, (), True), (BOB, (), False), (CAROL, (), True), (DAVE, (ONCALL,), True),
        (DAVE, (DAVE, 42001, ONCALL), True), (DAVE, (DAVE,), False), (NOBODY, (), False),
    ],
)  # fmt: skip
def test_over_the_socket_the_kernel_says_who_reads(exporter: Any, uid: int, gids: tuple[int, ...], reads: bool) -> None:
    """The run's owner, root, and whom the site lists, by a group too, read everything; others as strangers do."""
    with acting_as(uid, *gids):
        assert private_in(exporter.ask) == (set(PRIVATE) if reads else set())


@needs_root
@pytest.mark.parametrize("uid", [0, ALICE, BOB])
@pytest.mark.parametrize(
    "headers",
    [{}, {"X_Forwarded_For": "1.2.3.4"}, {"X_Real_IP": "1.2.3.4"}, {"Via": "1.1 p"}, {"forwarded": "for=127.0.0.1"},
     {"Authorization": "Basic cm9vdDo="}],
)  # fmt: skip
def test_loopback_is_no_identity(exporter: Any, uid: int, headers: dict[str, str]) -> None:
    """Over TCP nobody reads what is private, root neither: a browser and a proxy are there as well."""
    with acting_as(uid):
        assert private_in(exporter.stranger, **headers) == set()


@needs_root
@pytest.mark.parametrize(
    "name",
    ["evil.example", "evil.example:10024", "localhost.evil.example", "127.0.0.1.evil.example", "EVIL.example.", "[a.b"],
)
def test_a_page_of_another_name_gets_metrics_alone(exporter: Any, name: str) -> None:
    """A web page whose name resolves to loopback reads no page here, and asks for no box; it may set most headers."""
    for path in ("/", "//", "/api/node", served.page_path("llama"), served.box_path("llama", 0, 0)):
        for also in ({}, {"X_Forwarded_For": "1.2.3.4"}, {"Forwarded": "for=1.2.3.4"}):
            assert exporter.stranger(path, Host=name, **also)[0] == 403
    same = {"Host": name, "Origin": f"http://{name}", "Sec_Fetch_Site": "same-origin"}
    assert exporter.stranger(served.capture_path("llama"), "POST", **same)[0] == 403
    for path in ("/metrics", "/-/healthy", "/-/ready"):
        assert exporter.stranger(path, Host=name)[0] == 200


@needs_root
@pytest.mark.parametrize(
    "name", ["localhost", "LOCALHOST:1", "a.localhost", "127.0.0.1:9", "[::1]:9", "10.0.0.7", socket.gethostname()]
)
def test_names_of_this_machine_are_served(exporter: Any, name: str) -> None:
    """Addresses, localhost and the node's own name, through a tunnel with another port too."""
    assert exporter.stranger("/", Host=name)[0] == 200


@needs_root
def test_only_who_may_read_a_run_asks_for_its_boxes(exporter: Any) -> None:
    """A capture is for the owner and the site's readers; what NCCL's service said is theirs as well."""
    path = served.capture_path("llama")
    with acting_as(BOB):
        assert exporter.ask(path, "POST")[0] == exporter.stranger(path, "POST")[0] == 403
    assert exporter.stranger(path, "POST")[0] == 403
    with acting_as(ALICE):
        assert exporter.ask(path, "POST", Origin="http://evil.example")[0] == 403
        status, body = exporter.ask(path, "POST")
        assert (status, json.loads(body)["asked"]) == (200, 1)
        assert b"<form" in exporter.ask(served.page_path("llama"))[1]
    assert b"<form" not in exporter.stranger(served.page_path("llama"))[1]


@needs_root
def test_pages_of_many_users_are_within_their_share(exporter: Any) -> None:
    """Users without a run share the page of strangers, so that their number costs nothing."""

    def are_shared() -> bool:
        pages = set()
        for uid in range(50000, 50008):
            with acting_as(uid):
                pages.add(json.loads(exporter.ask("/api/node")[1])["time"])
        return len(pages) < 8

    exporter.eventually(are_shared)  # a busy machine may make a new page before the next user asks


@needs_root
def test_readers_are_reloaded(exporter_at: Callable[..., Any], tmp_path: Path) -> None:
    """SIGHUP applies another list; a name that nobody has is a fault, and the last list stays."""
    file = tmp_path / "config.yml"
    file.write_text(f"web: {{readers: '{BOB}'}}\n")
    exporter = exporter_at("--no-gpu", "--run.owner=never", f"--config={file}")
    with acting_as(ALICE):
        speaker = exporter.speaker("llama")
    speaker.hello()
    speaker.state(notices=["SECRETNOTICE"])

    def sees(uid: int) -> bool:
        with acting_as(uid):
            return b"SECRETNOTICE" in exporter.ask("/api/node")[1]

    exporter.eventually(lambda: sees(BOB))
    for text, words in ((str(CAROL), "configuration reloaded"), ("no-such-user-here", "configuration not reloaded")):
        file.write_text(f"web: {{readers: '{text}'}}\n")
        exporter.process.send_signal(signal.SIGHUP)
        exporter.eventually(lambda words=words: words in exporter.log.read_text())  # type: ignore[misc]
        assert (sees(BOB), sees(CAROL)) == (False, True)


def test_a_password_reads_everything(exporter_at: Callable[..., Any], tmp_path: Path) -> None:
    """Over TCP it is the identity; the unix socket needs none, since the kernel says who is there."""
    bcrypt = pytest.importorskip("bcrypt")
    web = tmp_path / "web.yml"
    web.write_text(f"basic_auth_users: {{oncall: {bcrypt.hashpw(b'right', bcrypt.gensalt(4)).decode()}}}\n")
    exporter = exporter_at("--no-gpu", "--run.owner=never", f"--web.config.file={web}")
    speaker = exporter.speaker("llama")
    speaker.hello()
    speaker.state(notices=["SECRETNOTICE"])
    right = {"Authorization": "Basic b25jYWxsOnJpZ2h0"}
    exporter.eventually(lambda: b"SECRETNOTICE" in exporter.stranger("/api/node", **right)[1])
    assert exporter.stranger("/api/node", **right, Host="evil.example")[0] == 200
    assert exporter.stranger("/api/node")[0] == 401
    assert exporter.stranger("/metrics")[0] == 401
    assert b"SECRETNOTICE" in exporter.ask("/api/node")[1]
    assert exporter.stranger(served.capture_path("llama"), "POST", **right)[0] == 200


def test_the_socket_can_be_elsewhere_or_nowhere(exporter_at: Callable[..., Any], tmp_path: Path) -> None:
    """--web.socket moves it, empty means none, and it is gone with the exporter."""
    exporter = exporter_at("--no-gpu")
    assert exporter.own.stat().st_mode & 0o777 == 0o666
    exporter.stop()
    assert not exporter.own.exists()
    assert not exporter_at("--no-gpu", "--web.socket=").own.exists()


def test_names_and_numbers_of_readers() -> None:
    """Users and groups are given by name or number; what is not known here is an error that names it."""
    group = grp.getgrgid(0).gr_name
    assert read_site_readers(f"root, 41002 ,%{group},%7") == SiteReaders(frozenset({0, 41002}), frozenset({0, 7}))
    assert read_site_readers("") == SiteReaders()
    for wrong in ("no-such-user-here", "%no-such-group-here", "-1", ""):
        with pytest.raises(ValueError, match=f"^{wrong}$"):
            read_site_readers(f"root,{wrong}")


def test_a_user_of_another_namespace_is_nobody() -> None:
    """All uids that are not mapped here look alike, so they have no runs of their own."""
    reader = PeerUser(None, frozenset()).reader(SiteReaders(frozenset({65534}), frozenset()))
    assert reader.is_stranger
    assert not reader.may_read(65534)
    assert not reader.may_read(None)
    assert Reader("", 7).may_read(7)
    assert not Reader("", 7).may_read(None)


def test_what_is_public_of_a_box() -> None:
    """Lines of the user's code keep their files' names, those of libraries the path in them; no deep nesting."""
    public = json.loads(public_box(json.dumps(BOX).encode()))
    assert public["failure"] == {"category": "data"}
    assert [frame["filename"] for frame in public["recorders"]["nccl"]["entries"][0]["frames"]] == [
        "train.py", "site-packages/torch/a.py",
    ]  # fmt: skip
    assert not {"stacks", "environment", "log", "unreadable", "added_later"} & public.keys()
    deep = b"[" * 800 + b"]" * 800
    assert json.loads(public_box(b'{"rank": 1, "recorders": ' + deep + b', "failure": [1]}')) == {
        "rank": 1, "recorders": None, "failure": None,
    }  # fmt: skip
    for wrong in (b"[" * 100_000, b"[1]", b"\xff", b""):
        assert public_box(wrong) == b"{}"


def test_every_key_of_a_box_is_private_or_not() -> None:
    """What our own client writes is one of those, and what is left of it is a box still, which names the line."""
    state = RankState(Identity("llama", 0, 0, 1, 0, 0), Workload(1), Misuse(), device_time=False)
    facts = {"reason": "asked for", "where": "train.py:1 f", **state.box_facts()}
    whole = json.loads(make_box(facts, 1, with_lines=False))
    assert whole.keys() - PUBLIC_OF_BOX == {"environment", "log", "stacks"}
    public = json.loads(public_box(json.dumps(whole).encode()))
    assert public.keys() == whole.keys() & PUBLIC_OF_BOX
    assert is_one(public)
    assert public["where"] == "train.py:1 f"


def test_a_certificate_is_an_identity(exporter_at: Callable[..., Any], certificates: Any, tmp_path: Path) -> None:
    """With VerifyClientCertIfGiven who shows one reads everything, and who shows none is a stranger."""
    folder = certificates.folder
    web = tmp_path / "web.yml"
    web.write_text(
        f"tls_server_config: {{cert_file: {folder}/server.pem, key_file: {folder}/server.key, "
        f"client_ca_file: {folder}/ca.pem, client_auth_type: VerifyClientCertIfGiven}}\n"
    )
    exporter = exporter_at("--no-gpu", "--run.owner=never", f"--web.config.file={web}")
    speaker = exporter.speaker("llama")
    speaker.hello()
    speaker.state(notices=["SECRETNOTICE"])
    exporter.eventually(lambda: b"SECRETNOTICE" in exporter.ask("/api/node")[1])
    for shown in (True, False):
        context = ssl.create_default_context(cafile=f"{folder}/ca.pem")
        context.check_hostname = False
        if shown:
            context.load_cert_chain(f"{folder}/scraper.pem", f"{folder}/scraper.key")
        host, port = exporter.url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port)), timeout=20) as plain, context.wrap_socket(plain) as secure:
            secure.sendall(b"GET /api/node HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            answer = b"".join(iter(lambda secure=secure: secure.recv(65536), b""))  # type: ignore[misc]
        assert answer.startswith(b"HTTP/1.1 200")
        assert (b"SECRETNOTICE" in answer) == shown


@needs_root
def test_our_commands_ask_through_the_socket(
    exporter: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Where this node's exporter is meant it is asked there, so that each user sees their own runs' texts."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(exporter.socket))
    monkeypatch.delenv("TACHOGRAPH_EXPORTER_URL", raising=False)

    def seen(address: str) -> bool:
        return any("SECRETNOTICE" in one.text for one in NodeSource(address).fetch().problems)

    for address in (default_exporter(), f"localhost:{DEFAULT_PORT}", socket.gethostname(), f"unix:{exporter.own}"):
        for uid, reads in ((0, True), (ALICE, True), (BOB, False)):
            with acting_as(uid):
                assert seen(address) == reads, (address, uid)
    assert not seen(exporter.url)
    assert top(["--once", "--json", "--exporter", f"unix:{exporter.own}"]) == 0
    assert "SECRETNOTICE" in capsys.readouterr().out


def test_a_socket_without_an_exporter_is_not_asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One that an exporter left behind, or that is of another address, changes nothing."""
    monkeypatch.setenv("TACHOGRAPH_SOCKET", str(tmp_path / "rank.sock"))
    left = socket.socket(socket.AF_UNIX)
    left.bind(str(tmp_path / "rank.web.sock"))
    assert _own_exporter(urlsplit(f"http://localhost:{DEFAULT_PORT}/metrics")) is None
    left.listen()
    assert _own_exporter(urlsplit(f"http://127.0.0.1:{DEFAULT_PORT}/metrics")) == str(tmp_path / "rank.web.sock")
    for other in ("http://localhost:9090/", f"http://node-27:{DEFAULT_PORT}/", f"https://localhost:{DEFAULT_PORT}/",
                  f"http://user:password@localhost:{DEFAULT_PORT}/"):  # fmt: skip
        assert _own_exporter(urlsplit(other)) is None
    left.close()


def test_a_private_exporter_shows_its_owner_everything() -> None:
    """That of `run --watch` is read through its socket, in a folder that is closed to others; over TCP it withholds."""
    with private_exporter() as private:
        assert private.own == f"unix:{private.socket.with_suffix('.web.sock')}"
        assert private.socket.parent.stat().st_mode & 0o077 == 0
        speaker = Speaker(private.socket)
        assert speaker.hello()["ok"]
        speaker.state(notices=["SECRETNOTICE"])
        texts = [
            [one.text for one in NodeSource(address).fetch().problems if "SECRETNOTICE" in one.text]
            for address in (private.own, private.url)
        ]
        speaker.close()
    assert texts[0]
    assert not texts[1]
